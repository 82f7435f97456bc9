// Package hoststest gives tests hosts to run on: it makes a hosts.Net that
// ends with the test, and skips the test where the machine cannot have one.
//
// # Jobs
//
// [BuildJob] builds the module's own programs for a test; [WritePlacement] places the
// keys of psjob.
//
// # Peers
//
// [BuildPeer] builds a small PS-lite scheduler, server and worker in C++ on libzmq and
// protobuf (src), written from the wire format alone, as a second opinion on it. Tests
// run it beside or against psjob and compare sums, accesses and speed.
//
// The program takes its part from DMLC_ROLE and the other DMLC_* variables. It needs
// DMLC_NODE_HOST, speaks IPv6 where that address is one, does not speak PS_RESEND, and
// gives up after PEER_TIMEOUT seconds (120) of silence.
package hoststest

import (
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/require"
)

// New makes the hosts of cfg and ends them with the test. It skips the test,
// or fails it where everything is required, without root or cgroup v2, and
// without BPF where cfg counts by pairs.
func New(t testing.TB, cfg hosts.Config) *hosts.Net {
	t.Helper()
	require.Root(t)
	require.CgroupV2(t)
	if cfg.Pairs {
		require.BPF(t)
	}
	n, err := hosts.New(cfg)
	if err != nil {
		t.Fatalf("making hosts: %v", err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("ending the hosts: %v", err)
		}
	})
	return n
}
