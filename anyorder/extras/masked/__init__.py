"""Which masked models of others run here, and what are they?"""
