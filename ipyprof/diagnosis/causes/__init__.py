"""causes"""
