package sidecar

import (
	"context"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// TestAnswersThroughProxies: answers of another host come to a worker from its own host's
// proxy, over the loopback device. The agent sees them all the same, so that no request is said
// to wait which has its answer.
func TestAnswersThroughProxies(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	Start(t, n.Host(0), program, "sidecar")
	workers := Start(t, n.Host(1), program, "sidecar")
	mine := hosts.Program{psjob, "--model", "count", "--steps", "1000000"}
	running, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(1, mine), Workers: hosts.Repeat(2, mine)}.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); running.Wait() }() // which is not meant to end by itself
	const enough = 100
	var jobs page.Jobs
	for end := time.Now().Add(patience); len(jobs.Jobs) == 0 || jobs.Jobs[0].Latency.Count < enough; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the agent of a worker whose server is on another host has seen too few answers: %+v", jobs.Jobs)
		}
		if err := workers.Get(ctx, Page, "/api/v1/jobs", &jobs); err != nil {
			t.Fatal(err)
		}
	}
	state, err := workers.Connections(ctx)
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for _, c := range state.Connections {
		if c.Kind == "link" {
			links++
		}
	}
	if links == 0 {
		t.Errorf("no connection is carried by both hosts' proxies: %+v", state.Connections)
	}
}
