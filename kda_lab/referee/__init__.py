"""The claim referee: A/B results of anyone, judged by what their own numbers can carry."""
