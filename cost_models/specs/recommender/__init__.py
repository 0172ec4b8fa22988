"""Specs of recommenders as users write them: tables and dense network, training job, sharding of the tables."""
