package reports

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
)

func TestKeepsTheNewest(t *testing.T) {
	s := &Store{}
	for _, r := range []*api.HostReport{
		{Host: "a", Incarnation: 1, Sequence: 9},
		{Host: "a", Incarnation: 2, Sequence: 2},
		{Host: "a", Incarnation: 2, Sequence: 1},
		{Host: "a", Incarnation: 1, Sequence: 10},
		{Host: "b", Incarnation: 1, Sequence: 1},
	} {
		if err := s.take(r); err != nil {
			t.Fatal(err)
		}
	}
	all := s.All()
	if len(all) != 2 || all[0].GetIncarnation() != 2 || all[0].GetSequence() != 2 {
		t.Errorf("%v", all)
	}
}

func TestRefuses(t *testing.T) {
	s := &Store{}
	for name, r := range map[string]*api.HostReport{
		"no host": {Sequence: 1},
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
		if err := s.take(r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBounds(t *testing.T) {
	now := time.Unix(1000, 0)
	s := &Store{now: func() time.Time { return now }}
	for i := range MaxHosts {
		if err := s.take(&api.HostReport{Host: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.take(&api.HostReport{Host: "one more"}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("host %d: %v", MaxHosts+1, err)
	}
	now = now.Add(Forget)
	if err := s.take(&api.HostReport{Host: "one more"}); err != nil {
		t.Errorf("after others were silent: %v", err)
	}
	if n := len(s.All()); n != MaxHosts {
		t.Errorf("%d hosts are kept", n)
	}
}
