package main

import (
	"net"
	"testing"
	"time"
)

// A planner counts who has not said who it is.
func TestPlannerCountsSilentConnections(t *testing.T) {
	c, address := startPlanner(t, plannerFlags{})
	for end := time.Now().Add(time.Minute); c.opening.Size() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no connection is waited for")
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if _, ok := gathered(t, c.policy)["psidecar_planner_refused_callers_total silent"]; !ok {
		t.Error("those that are reset for others are not among the metrics")
	}
}
