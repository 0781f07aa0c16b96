"""How do models and tools of others meet ours?"""
