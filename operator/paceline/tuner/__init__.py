"""The tuner without a cluster: the operator's machine over engines that are read directly."""
