"""What does it look like?"""
