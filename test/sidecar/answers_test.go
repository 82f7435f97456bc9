package sidecar

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/page"
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
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	Start(t, n.Host(0), program, "sidecar")
	workers := Start(t, n.Host(1), program, "sidecar")
	mine := hosts.Program{psjob, "--model", "count", "--steps", "1000000"}
	running, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(1, mine), Workers: hosts.Repeat(2, mine)}.Start(ctx)
	require.NoError(t, err)
	defer func() { cancel(); running.Wait() }() // which is not meant to end by itself
	const enough = 100
	var jobs page.Jobs
	require.Await(t, "the agent of a worker sees answers of a server on another host", func() error {
		err := workers.Get(ctx, Page, "/api/v1/jobs", &jobs)
		if err == nil && (len(jobs.Jobs) == 0 || jobs.Jobs[0].Latency.Count < enough) {
			err = fmt.Errorf("too few: %+v", jobs.Jobs)
		}
		return err
	})
	state := require.Value(workers.Connections(ctx))(t)
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
