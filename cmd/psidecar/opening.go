package main

// Bounds of connections at the planner's address that have not said who they are.
// Thousands of hosts may come at once, from one address where another planner
// sends them on.
const (
	plannerOpenings          = 2048
	plannerOpeningsPerSource = 1024
)
