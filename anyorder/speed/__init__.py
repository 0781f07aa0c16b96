"""Against what is it measured?"""
