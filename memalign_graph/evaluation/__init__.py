"""The evaluation lab: does the judge agree with the experts, and is it getting better?"""
