package planner

import (
	"testing"
	"time"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

func TestPast(t *testing.T) {
	began := time.Unix(10_000, 0)
	now := began
	s := &ReportStore{now: func() time.Time { return now }}
	report := func(host string, bytes uint64) {
		t.Helper()
		r := &api.HostReport{Host: host, Sequence: bytes, Jobs: []*api.JobReport{{
			Job: "j", Bytes: bytes, Hottest: []*api.HotKey{{Key: 1}},
			Traffic: []*api.Traffic{{Worker: "worker0", Server: "server0", ToServer: bytes}},
		}}}
		require.NoError(t, s.acceptReport(s.openSession(), r))
	}
	for i := range uint64(4000) { // every two seconds, and the second host from the middle on
		report("a", 10+i)
		if i >= 2100 {
			report("b", i)
		}
		now = now.Add(2 * time.Second)
	}
	for _, tc := range []struct {
		ago  time.Duration
		want uint64 // bytes of host a
		b    bool   // there is one of b from then
	}{
		{0, 4007, true},
		{100 * time.Second, 3959, true},
		{14 * time.Minute, 3583, true}, // up to half a minute before
		{59 * time.Minute, 2233, true},
		{2 * time.Hour, 2194, false}, // the oldest that is kept
	} {
		reports, at := s.Past(now.Add(-tc.ago))
		if len(reports) != 2 || reports[0].GetHost() != "a" || reports[1].GetHost() != "b" {
			t.Fatalf("%v ago: %v", tc.ago, reports)
		}
		j := reports[0].GetJobs()[0]
		if off := int64(j.GetBytes() - tc.want); off < -8 || off > 8 || j.GetTraffic()[0].GetToServer() != j.GetBytes() || j.GetHottest() != nil {
			t.Errorf("%v ago: %d bytes, want about %d: %v", tc.ago, j.GetBytes(), tc.want, j)
		}
		if before := !at[0].After(now.Add(-tc.ago)); before != tc.b {
			t.Errorf("%v ago: what came %v ago", tc.ago, now.Sub(at[0]))
		}
	}
	if n := len(s.history.old) + len(s.history.fresh); n > 2*int(HistoryFine/HistoryEvery+HistoryKept/HistoryCoarse)+8 {
		t.Errorf("%d reports are kept", n)
	}
}

// However large reports are, their history is bounded.
func TestPastIsBounded(t *testing.T) {
	now := time.Unix(10_000, 0)
	s := &ReportStore{now: func() time.Time { return now }}
	pulls := make([]uint64, 1<<20)
	for i := range pulls {
		pulls[i] = 1 << 60
	}
	blocks := make([]*api.Block, len(pulls))
	for i := range blocks {
		blocks[i] = &api.Block{}
	}
	use := &api.Use{Worker: "worker0", Pulls: pulls, Pushes: pulls, PulledBytes: pulls, PushedBytes: pulls}
	for i := range uint64(6) {
		now = now.Add(HistoryEvery)
		require.NoError(t, s.acceptReport(s.openSession(), &api.HostReport{Host: "a", Sequence: i, Jobs: []*api.JobReport{{Job: "j", Blocks: blocks, Uses: []*api.Use{use}}}}))
	}
	if n := len(s.history.old) + len(s.history.fresh); n != 1 || s.history.bytes > HistoryBytes || s.history.bytes <= 0 {
		t.Errorf("%d reports of %d bytes are kept, want 1", n, s.history.bytes)
	}
}
