package loadtest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/psidecar/psidecar/planner/api"
)

// TestVersionsWithoutOwners compares what the codec of proxies that keep versions alone decodes
// with the whole event.
func TestVersionsWithoutOwners(t *testing.T) {
	owners := &api.Displaced{First: []uint64{1, 1 << 63}, Owner: []int32{3, -1}}
	for name, e := range map[string]*api.PlanEvent{
		"change":   {Job: "j", Run: "r", Servers: 4, Event: &api.PlanEvent_Change{Change: &api.Change{Version: 7, Batch: 1 << 40, Mark: 9, Displaced: owners}}},
		"snapshot": {Job: "j", Event: &api.PlanEvent_Snapshot{Snapshot: &api.Snapshot{Version: 7, First: true, Last: true, Stores: []string{"a", "b"}, Mark: 9, Displaced: owners}}},
		"move":     {Job: "j", Event: &api.PlanEvent_Move{Move: &api.MoveBatch{Batch: 5, First: []uint64{1, 2}}}},
		"empty":    {Job: "j", Event: &api.PlanEvent_Change{Change: &api.Change{}}},
		"listed":   {Event: &api.PlanEvent_Listed{Listed: true}},
	} {
		t.Run(name, func(t *testing.T) {
			encoded, err := proto.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			var got api.PlanEvent
			codec := versionCodec{encoding.GetCodecV2("proto")}
			if err := codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, &got); err != nil {
				t.Fatal(err)
			}
			want := proto.Clone(e).(*api.PlanEvent)
			if c := want.GetChange(); c != nil {
				c.Displaced = nil
			}
			if s := want.GetSnapshot(); s != nil {
				s.Displaced = nil
			}
			if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
				t.Errorf("decoded, -want +got:\n%s", diff)
			}
			for n := range encoded {
				// A part of a message is an error or a message, never a panic.
				_ = codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded[:n])}, &got)
			}
		})
	}
}
