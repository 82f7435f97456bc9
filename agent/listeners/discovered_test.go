package listeners

import (
	"net/netip"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/internal/policy"
)

func TestDiscovered(t *testing.T) {
	at := netip.MustParseAddrPort("198.18.0.1:9000")
	all, left := Discovered(&discover.Snapshot{Processes: []discover.Process{
		{PID: 3, Role: "worker", Scheduler: at, Cgroup: "/pods/a"},
		{PID: 4, Role: "worker", Scheduler: at, Cgroup: "/"},
		{PID: 5, Role: "worker", Scheduler: at},
		{PID: 6, Role: "worker", Scheduler: at, Cgroup: "/pods/b", Local: true},
	}}, "/host/proc", "/sys/fs/cgroup", func(p *discover.Process) (string, policy.Policy) {
		return "ns/train", policy.Policy{Threshold: strconv.Itoa(p.PID)}
	})
	want := []Process{{Job: "198.18.0.1:9000", Called: "ns/train", Wishes: policy.Policy{Threshold: "3"}, Cgroup: "/sys/fs/cgroup/pods/a", Netns: "/host/proc/3/ns/net"}}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Error(diff)
	}
	if len(left) != 3 || left[0].PID != 4 || left[1].PID != 5 || left[2].PID != 6 {
		t.Errorf("left out: %+v", left)
	}
}
