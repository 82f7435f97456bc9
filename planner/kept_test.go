package planner

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

// All of a report is kept but its windows, which are passed on. When its large
// parts were made is the planner's to note.
func TestAllIsKeptButWindows(t *testing.T) {
	r := &api.HostReport{
		Host: "a", Incarnation: 1, Sequence: 2, UnixNanos: 3, Agent: &api.AgentReport{Version: "v"}, Machine: &api.Machine{LinkMbit: 25000, Cores: 8}, Light: true, WholeUnixNanos: 9,
		Jobs: []*api.JobReport{{Job: "j:1", Bytes: 7, Window: &api.Window{Keys: []uint64{1}}}, {Job: "j:2"}},
	}
	for i, fields := 0, r.ProtoReflect().Descriptor().Fields(); i < fields.Len(); i++ {
		if !r.ProtoReflect().Has(fields.Get(i)) {
			t.Errorf("this test sets no %s", fields.Get(i).Name())
		}
	}
	want := proto.CloneOf(r)
	want.Jobs[0].Window, want.WholeUnixNanos = nil, 0
	var told *api.Window
	s := &ReportStore{Windows: func(r *api.HostReport) { told = r.GetJobs()[0].GetWindow() }}
	require.NoError(t, s.acceptReport(s.openSession(), r))
	if all := s.All(); len(all) != 1 || !proto.Equal(all[0], want) {
		t.Errorf("it keeps %v, want %v", all, want)
	}
	if len(told.GetKeys()) != 1 {
		t.Errorf("the window told is %v", told)
	}
}
