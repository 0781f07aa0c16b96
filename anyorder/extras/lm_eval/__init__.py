"""What is a task of lm-evaluation-harness to a model of any order?"""
