package planner

import (
	"fmt"
	"math"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

// taken gives the store a report of a stream.
func taken(t *testing.T, s *ReportStore, own *session, r *api.HostReport) {
	t.Helper()
	require.NoError(t, s.acceptReport(own, r))
}

// kept returns start and number of the report that is kept of host a.
func kept(s *ReportStore) (incarnation, sequence uint64) {
	for _, r := range s.All() {
		if r.GetHost() == "a" {
			return r.GetIncarnation(), r.GetSequence()
		}
	}
	return 0, 0
}

func TestKeepsTheNewest(t *testing.T) {
	s := &ReportStore{}
	first := s.openSession()
	taken(t, s, first, &api.HostReport{Host: "a", Incarnation: 2, Sequence: 9})
	taken(t, s, first, &api.HostReport{Host: "a", Incarnation: 2, Sequence: 8})
	taken(t, s, s.openSession(), &api.HostReport{Host: "b", Incarnation: 1, Sequence: 1})
	if all := s.All(); len(all) != 2 || all[0].GetSequence() != 9 {
		t.Errorf("%v", all)
	}
}

// A report with the largest numbers there are does not silence a host: neither
// its agent's next stream, nor the one that was there before, once the stream
// with the large numbers has ended.
func TestLargestNumbersSilenceNobody(t *testing.T) {
	for name, ends := range map[string]bool{"while its stream lives": false, "when its stream has ended": true} {
		t.Run(name, func(t *testing.T) {
			s := &ReportStore{}
			agent := s.openSession()
			taken(t, s, agent, &api.HostReport{Host: "a", Incarnation: 7, Sequence: 1})
			forged := s.openSession()
			taken(t, s, forged, &api.HostReport{Host: "a", Incarnation: math.MaxUint64, Sequence: math.MaxUint64})
			taken(t, s, agent, &api.HostReport{Host: "a", Incarnation: 7, Sequence: 2})
			if incarnation, _ := kept(s); incarnation != math.MaxUint64 || s.Silenced() != 1 {
				t.Errorf("of two streams that live the newer must count; kept is start %d, %d reports were ignored", incarnation, s.Silenced())
			}
			if ends {
				s.closeSession(forged)
			} else {
				agent = s.openSession()
			}
			taken(t, s, agent, &api.HostReport{Host: "a", Incarnation: 7, Sequence: 3})
			if incarnation, sequence := kept(s); incarnation != 7 || sequence != 3 {
				t.Errorf("kept is report %d of start %d: the agent is silenced", sequence, incarnation)
			}
		})
	}
}

// An agent that starts again counts, whatever its clock says now; one whose
// stream is older does not come back while the newer stream lives.
func TestRestartedAgentCounts(t *testing.T) {
	s := &ReportStore{}
	before := s.openSession()
	taken(t, s, before, &api.HostReport{Host: "a", Incarnation: 9, Sequence: 100})
	after := s.openSession()
	taken(t, s, after, &api.HostReport{Host: "a", Incarnation: 3, Sequence: 1})
	taken(t, s, before, &api.HostReport{Host: "a", Incarnation: 9, Sequence: 101})
	s.closeSession(before)
	if incarnation, sequence := kept(s); incarnation != 3 || sequence != 1 {
		t.Errorf("kept is report %d of start %d, not the first of the new start", sequence, incarnation)
	}
}

// A stream is for one host.
func TestStreamOfOneHost(t *testing.T) {
	s := &ReportStore{}
	own := s.openSession()
	taken(t, s, own, &api.HostReport{Host: "a", Sequence: 1})
	if err := s.acceptReport(own, &api.HostReport{Host: "b", Sequence: 2}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a report of another host: %v", err)
	}
}

func TestRefuses(t *testing.T) {
	s := &ReportStore{}
	for name, r := range map[string]*api.HostReport{
		"no host":     {Sequence: 1},
		"a job twice": {Host: "a", Jobs: []*api.JobReport{{Job: "j"}, {Job: "j"}}},
		"rows that do not fit": {Host: "a", Jobs: []*api.JobReport{{
			Job: "j", Blocks: []*api.Block{{}, {}}, Uses: []*api.Use{{Worker: "worker0", Pulls: []uint64{1}}},
		}}},
		"counts that do not fit their durations": {Host: "a", Jobs: []*api.JobReport{{
			Job: "j", ByWorker: []*api.Latency{{Name: "worker0", Micros: []uint64{1, 2}, Counts: []uint64{1}}},
		}}},
		"more requests than there can be": {Host: "a", Jobs: []*api.JobReport{{
			Job: "j", ByServer: []*api.Latency{{Name: "server0", Micros: []uint64{1}, Counts: []uint64{1 << 63}}},
		}}},
	} {
		if err := s.acceptReport(s.openSession(), r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReportsBounds(t *testing.T) {
	now := time.Unix(1000, 0)
	s := &ReportStore{now: func() time.Time { return now }}
	for i := range MaxReportHosts {
		require.NoError(t, s.acceptReport(s.openSession(), &api.HostReport{Host: fmt.Sprint(i)}))
	}
	s.Windows = func(r *api.HostReport) {
		t.Errorf("the uses of host %s, for which there is no room, are taken", r.GetHost())
	}
	if err := s.acceptReport(s.openSession(), &api.HostReport{Host: "one more"}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("host %d: %v", MaxReportHosts+1, err)
	}
	s.Windows = nil
	now = now.Add(ForgetAfter)
	if err := s.acceptReport(s.openSession(), &api.HostReport{Host: "one more"}); err != nil {
		t.Errorf("after others were silent: %v", err)
	}
	if n := len(s.All()); n != MaxReportHosts {
		t.Errorf("%d hosts are kept", n)
	}
}
