package main

import (
	"cmp"
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/live"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/test/require"
)

// startedPlanner is a planner that runs.
type startedPlanner struct {
	*planner.Planner
	opts planner.Options
}

// startPlanner runs a planner on free ports until the test ends and returns
// where it is asked for plans.
func startPlanner(t *testing.T, f plannerFlags) (*startedPlanner, string) {
	t.Helper()
	f.Listen = cmp.Or(f.Listen, "127.0.0.1:0")
	if f.Live.Strategy == "" {
		f.Live = live.DefaultOptions
	}
	var ports cli.Ports
	o := require.Value(f.open(t.Context(), "--", &ports))(t)
	p := require.Value(planner.New(t.Context(), o))(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ports.Close()
	})
	return &startedPlanner{p, o}, o.Reports.Addr().String()
}

func TestPlanCommands(t *testing.T) {
	c, address := startPlanner(t, plannerFlags{Settings: planner.Settings{Store: filepath.Join(t.TempDir(), "plans.db")}})
	_, err := c.Plans().Propose(t.Context(), plans.Proposal{
		Job: "198.18.0.1:9000", Servers: 2, Reason: "server 0 is busy",
		Targets: []plan.Range{{Keys: plan.Keys{First: 7, Last: 9}, Owner: 1}},
		Hosts:   []*api.HostLoad{{Host: "a", Before: 1000, Predicted: 600}, {Host: "b", Before: 200, Predicted: 600}},
	})
	require.NoError(t, err)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"plan", "show"}, 0, "server 0 is busy"},
		{[]string{"plan", "show", "--job", "no:1"}, 1, `job "no:1" has no plan`},
		{[]string{"plan", "rollback"}, 1, "no plan that was applied"},
		{[]string{"plan", "apply", "--epoch", "5"}, 1, "no epoch 5"},
		{[]string{"plan", "apply"}, 0, "epoch 1: 3 keys to move"},
		{[]string{"plan", "show"}, 0, "no proxy that can move keys is connected to the planner"},
		{[]string{"plan", "apply"}, 1, "no plan that was proposed"},
		{[]string{"plan", "forget"}, 1, "roll the plan back first"},
		{[]string{"plan", "rollback"}, 0, "epoch 2: 0 keys, done"}, // nothing had moved
		{[]string{"restore", "--wait", "1s"}, 0, "epoch 3: 0 keys, done"},
		{[]string{"plan", "forget"}, 0, "forgotten"},
		{[]string{"plan", "show"}, 0, "no job has a plan"},
	} {
		code, stdout, stderr := runTest(t, nil, append(tc.args, "--planner", address)...)
		if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
			t.Errorf("%v: exit code %d, %q %q; want %d, %q", tc.args, code, stdout, stderr, tc.code, tc.want)
		}
		if tc.args[1] == "apply" && tc.code == 0 && len(tc.args) == 2 {
			checkShown(t, address)
		}
	}
}

// restore waits until all keys are at home. If it must not wait any longer it says which server has
// keys, and who would have to move them.
func TestRestoreSaysWhatStandsInTheWay(t *testing.T) {
	c, address := startPlanner(t, plannerFlags{Settings: planner.Settings{Store: filepath.Join(t.TempDir(), "plans.db")}})
	const job = "198.18.0.1:9000"
	if _, err := c.Plans().Propose(t.Context(), plans.Proposal{Job: job, Servers: 2, Targets: []plan.Range{{Keys: plan.Keys{First: 7, Last: 9}, Owner: 1}}}); err != nil {
		t.Fatal(err)
	}
	record := func(from, to int32) {
		t.Helper()
		require.Value(c.Plans().Record(t.Context(), &api.RecordRequest{Job: job, From: from, To: to, First: []uint64{7}, Last: []uint64{9}}))(t)
	}
	record(0, 1)
	code, stdout, stderr := runTest(t, nil, "restore", "--wait", "300ms", "--planner", address)
	if want := "0 of 3 keys have moved; server 1 still has 3 keys, such as 7, no connected proxy moves them"; code != 1 || !strings.Contains(stderr, "epoch 2, 0s: "+want) || !strings.Contains(stderr, "epoch 2 is not done: "+want) {
		t.Errorf("exit code %d, %q %q; want %q", code, stdout, stderr, want)
	}
	record(1, 0)
	// It begins again, with nothing left to move.
	code, stdout, stderr = runTest(t, nil, "restore", "--planner", address)
	if want := "epoch 3: 0 keys, done"; code != 0 || !strings.Contains(stdout, want) {
		t.Errorf("exit code %d, %q %q; want %q", code, stdout, stderr, want)
	}
}

func checkShown(t *testing.T, address string) {
	t.Helper()
	_, stdout, _ := runTest(t, nil, "plan", "show", "--json", "--planner", address)
	var shown struct {
		Jobs []struct {
			Servers int
			Epochs  []struct {
				State string
				Keys  string
				Hosts []struct {
					Host              string
					Before, Predicted float64
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(stdout), &shown); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	e := shown.Jobs[0].Epochs[0]
	if e.State != "MOVING" || e.Keys != "3" || len(e.Hosts) != 2 || e.Hosts[0].Predicted != 600 {
		t.Errorf("shown is %s", stdout)
	}
}

func TestPlanWithoutPlanner(t *testing.T) {
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	code, _, stderr := runTest(t, nil, "plan", "show", "--planner", address)
	if code != 1 || !strings.Contains(stderr, "planner "+address) {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	code, _, stderr = runTest(t, nil, "planner", "--act", "--listen", "127.0.0.1:0")
	if code != 2 || !strings.Contains(stderr, "--store FILE") {
		t.Errorf("--act without --store: exit code %d, %q", code, stderr)
	}
}
