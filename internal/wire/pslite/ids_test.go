package pslite

import (
	"math"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestNodeIDs(t *testing.T) {
	for id, name := range map[int32]string{
		1: "scheduler", 8: "server0", 9: "worker0", 10: "server1", 11: "worker1", 208: "server100",
		2: "", 4: "", 7: "", 0: "", -3: "", Empty: "",
	} {
		if got := NodeName(id); got != name {
			t.Errorf("node %d is %q, want %q", id, got, name)
		}
	}
	for rank := range 300 {
		for _, id := range []int32{ServerID(rank), WorkerID(rank)} {
			role, r, ok := Rank(id)
			if !ok || r != rank || (role == Server) != (id == ServerID(rank)) {
				t.Errorf("id %d: %s %d %v", id, role, r, ok)
			}
			if got, ok := ParseIdentity(AppendIdentity(nil, id)); !ok || got != id {
				t.Errorf("identity of %d reads as %d", id, got)
			}
		}
	}
	for _, s := range []string{"", "ps", "ps1x", "px9", "ps-1", "ps99999999999999999999", "p"} {
		if id, ok := ParseIdentity([]byte(s)); ok {
			t.Errorf("identity %q reads as %d", s, id)
		}
	}
}

func TestKeyRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 2000).Draw(t, "servers")
		key := rapid.Uint64().Draw(t, "key")
		rank, ok := Owner(key, n)
		if !ok {
			if _, end := KeyRange(n-1, n); key < end {
				t.Fatalf("key %d of %d servers has no owner, the last range ends at %d", key, n, end)
			}
			return
		}
		if first, end := KeyRange(rank, n); key < first || key >= end {
			t.Fatalf("key %d belongs to [%d, %d)", key, first, end)
		}
	})
	if first, end := KeyRange(1, 3); first != math.MaxUint64/3 || end != math.MaxUint64/3*2 {
		t.Errorf("server 1 of 3 owns [%d, %d)", first, end)
	}
	if _, ok := Owner(math.MaxUint64, 1); ok {
		t.Error("the reserved key has an owner")
	}
}

func TestSignature(t *testing.T) {
	m := Meta{AppID: 3, Timestamp: 5, Request: true}
	if got, want := Signature(&m, 9, 8), uint64(3<<48|9<<40|8<<32|11); got != want {
		t.Errorf("%#x, want %#x", got, want)
	}
	m.AppID = Empty // control messages
	if got, want := Signature(&m, 9, 1), uint64(0xffff<<48|9<<40|1<<32|11); got != want {
		t.Errorf("%#x, want %#x", got, want)
	}
	// From 2^30 on the sign covers app, sender and receiver: all collide.
	m.Timestamp = 1 << 30
	other := m
	other.AppID = 1
	if a, b := Signature(&m, 9, 8), Signature(&other, 11, 10); a != b || a != 0xffffffff_80000001 {
		t.Errorf("%#x and %#x", a, b)
	}
}

func TestTable(t *testing.T) {
	var table Table
	m := Meta{Control: Control{Cmd: AddNode, Nodes: []Node{
		{Role: Worker, ID: 9, Hostname: "10.0.0.2", Port: 7001},
		{Role: Server, ID: 8, Hostname: "10.0.0.3", Port: 7001},
		{Role: Scheduler, ID: 1, Hostname: "master", Port: 8000},
		{Role: Worker, ID: Empty, Hostname: "10.0.0.9", Port: 1},
	}}}
	if !table.Learn(&m) || table.Learn(&m) {
		t.Error("only the first time something is new")
	}
	if s, w := table.Count(); s != 1 || w != 1 || len(table.Nodes()) != 3 {
		t.Errorf("%d servers, %d workers, %d nodes", s, w, len(table.Nodes()))
	}
	for addr, want := range map[string]int32{"10.0.0.2:7001": 9, "10.0.0.3:7001": 8, "[::ffff:10.0.0.3]:7001": 8, "192.0.2.1:8000": 1} {
		if id, ok := table.At(netip.MustParseAddrPort(addr)); !ok || id != want {
			t.Errorf("%s is node %d, %v; want %d", addr, id, ok, want)
		}
	}
	if id, ok := table.At(netip.MustParseAddrPort("10.0.0.4:7001")); ok {
		t.Errorf("an unknown host is node %d", id)
	}
	m.Control.Nodes = []Node{{ID: 9, Hostname: "10.0.0.5", Port: 7001}} // recovered elsewhere
	if !table.Learn(&m) {
		t.Error("the move went unnoticed")
	}
	if id, _ := table.At(netip.MustParseAddrPort("10.0.0.5:7001")); id != 9 {
		t.Errorf("after the move: node %d", id)
	}
}
