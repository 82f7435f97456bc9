package sidecar

import (
	"context"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// TestPods: the job's processes are in network namespaces of their own, with
// addresses of their own, as in a cluster's pods; agent and proxy are in that of
// the node. Links go to the job's addresses all the same: the sums are exact,
// and messages encoded.
func TestPods(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	n := hoststest.New(t, hosts.Config{Hosts: 4})
	nodes, pods := n.Hosts()[:2], n.Hosts()[2:]
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	planner := net.JoinHostPort(nodes[0].IPv4.String(), strconv.Itoa(Planner))
	var all []*Sidecar
	for i, node := range nodes {
		group := require.Value(pods[i].Group("job"))(t)
		flags := []string{"--cgroup", group, "--codec", "compact"}
		if i > 0 {
			flags = append(flags, "--planner", planner)
		}
		all = append(all, Start(t, node, program, "sidecar", flags...))
	}
	// Real programs take a moment before they connect; psjob takes none, and its
	// first connections would go out before the agent has found it in its pod.
	slowly := hosts.Program{"sh", "-c", `sleep 0.5; exec "$0" "$@"`, psjob, "--json"}
	count := append(slices.Clone(slowly), "--model", "count", "--steps", "40")
	mine := slowly
	j := hosts.Job{Hosts: pods, Scheduler: mine, Servers: hosts.Repeat(2, mine), Workers: hosts.Repeat(2, count)}
	if _, err := j.Run(ctx); err != nil { // workers fail where a sum is wrong
		t.Fatal(err)
	}
	for _, s := range all {
		metric := func(name string) float64 {
			v := require.Value(s.Metric(ctx, name))(t)
			return v
		}
		// To and from the worker and the server in the other pod.
		if links, taken := metric(`psidecar_proxy_connections_total{kind="link"}`), metric(`psidecar_proxy_connections_total{kind="accepted"}`); links < 2 || taken < 2 {
			t.Errorf("%s: %v links to others, %v from others\n%s", s.Host.Name, links, taken, s.Log())
		}
		if encoded := metric(`psidecar_proxy_messages_total{codec="values",direction="to_far",form="encoded"}`); encoded < 40 {
			t.Errorf("%s: %v messages were encoded", s.Host.Name, encoded)
		}
		s.Stop(t)
	}
}
