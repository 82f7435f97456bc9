package planner_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/planner/api"

	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/test/grpctest"
	"github.com/psidecar/psidecar/test/require"
)

// repeated is a report of one job with n fields of a kind, as on the wire.
func repeated(field protowire.Number, value []byte, n int) []byte {
	var job []byte
	for range n {
		job = protowire.AppendBytes(protowire.AppendTag(job, field, protowire.BytesType), value)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, jobsField, protowire.BytesType), job)
}

var jobsField = (&api.HostReport{}).ProtoReflect().Descriptor().Fields().ByName("jobs").Number()

func number(name string) protowire.Number {
	return (&api.JobReport{}).ProtoReflect().Descriptor().Fields().ByTextName(name).Number()
}

// Whatever a message holds, it takes no more memory than its cost says, and not
// a small part of that.
func TestCostIsWhatDecodingTakes(t *testing.T) {
	numbers := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), make([]byte, 4<<20))
	group := protowire.AppendGroup(protowire.AppendTag(nil, number("blocks"), protowire.StartGroupType), number("blocks"), numbers)
	for name, b := range map[string][]byte{
		"empty blocks":  repeated(number("blocks"), nil, 1<<18),
		"empty uses":    repeated(number("uses"), nil, 1<<18),
		"empty hottest": repeated(number("hottest"), nil, 1<<18),
		"empty times":   repeated(number("by_worker"), nil, 1<<18),
		"zeros":         repeated(number("uses"), numbers, 1),
		"unknown":       repeated(1000, make([]byte, 100), 1<<16),
		"other type":    repeated(number("servers"), bytes.Repeat([]byte{0xff}, 100), 1<<16),
		"group":         protowire.AppendBytes(protowire.AppendTag(nil, jobsField, protowire.BytesType), group),
		"names":         repeated(number("job"), bytes.Repeat([]byte("x"), 1<<20), 1),
		"nodes":         repeated(number("nodes"), protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "worker12"), 1<<17),
	} {
		t.Run(name, func(t *testing.T) {
			r := &api.HostReport{}
			cost := require.Value(planner.ReportCost(b, r.ProtoReflect().Descriptor()))(t)
			// Nothing else allocates now, but what earlier tests have left may be freed in between,
			// even some collections later, and then less seems to be taken. So the most of three
			// counts is right.
			took := int64(0)
			for range 3 {
				r = nil
				before := live()
				r = &api.HostReport{}
				require.NoError(t, proto.Unmarshal(b, r))
				took = max(took, live()-before)
				runtime.KeepAlive(r)
			}
			if took > int64(cost) || took < int64(cost)/4 {
				t.Errorf("%d bytes on the wire take %d bytes of memory, the cost is said to be %d", len(b), took, cost)
			}
			if held := int64(planner.HeldBytes(r)); held < took*3/4 || held > took*5/4+1<<16 {
				t.Errorf("it takes %d bytes of memory, %d are said to be held", took, held)
			}
			runtime.KeepAlive(r)
		})
	}
}

func live() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Reports of some kilobytes, compressed, that take hundreds of megabytes once
// they are decoded are refused before they are.
func TestReportBombsAreRefused(t *testing.T) {
	store := &planner.ReportStore{}
	conn := grpctest.Serve(t, func(s *grpc.Server) { api.RegisterPlannerServer(s, store) },
		planner.NewIntake(planner.MessageMemory, planner.ReportMemory).Options()...)
	client := api.NewPlannerClient(conn)
	use := &api.HostReport{Host: "bomb", Jobs: []*api.JobReport{{Job: "j", Uses: make([]*api.Use, 1<<20)}}}
	for i := range use.GetJobs()[0].GetUses() {
		use.Jobs[0].Uses[i] = &api.Use{}
	}
	before := total()
	var g sync.WaitGroup
	for i := range 4 {
		g.Go(func() {
			stream, err := client.Report(t.Context(), grpc.UseCompressor(gzip.Name))
			if err != nil {
				t.Error(err)
				return
			}
			if err := stream.Send(use); err != nil {
				t.Log(i, err)
			}
			if _, err := stream.Recv(); err == nil || !strings.Contains(err.Error(), "bytes of memory, at most") {
				t.Errorf("a bomb is answered with %v", err)
			}
		})
	}
	g.Wait()
	// What the test's own client takes to encode them is in the sum.
	if got := total() - before; got > 200<<20 {
		t.Errorf("the bombs allocate %d MiB", got>>20)
	}
	if n := len(store.All()); n != 0 {
		t.Errorf("%d reports are kept", n)
	}
	fine := require.Value(client.Report(t.Context()))(t)
	for i := range uint64(100) { // what was handled does not count any more
		r := &api.HostReport{Host: "fine", Sequence: i, Jobs: []*api.JobReport{{Job: "j", Hottest: make([]*api.HotKey, 10000)}}}
		for k := range r.GetJobs()[0].GetHottest() {
			r.Jobs[0].Hottest[k] = &api.HotKey{Key: uint64(k)}
		}
		require.NoError(t, fine.Send(r))
		if _, err := fine.Recv(); err != nil {
			t.Fatalf("report %d: %v", i, err)
		}
	}
}

// watched answers each Watch at once, and goes on until the caller leaves.
type watched struct{ api.UnimplementedPlansServer }

func (watched) Watch(_ *api.WatchRequest, stream grpc.ServerStreamingServer[api.PlanEvent]) error {
	if err := stream.Send(&api.PlanEvent{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Requests that take all memory for messages hold it until they are read, not for as long as they
// are answered.
func TestWatchesDoNotHoldTheIntake(t *testing.T) {
	r := &api.WatchRequest{Jobs: make([]string, 1000)}
	b, err := proto.Marshal(r)
	require.NoError(t, err)
	cost, err := planner.ReportCost(b, r.ProtoReflect().Descriptor())
	require.NoError(t, err)
	client := api.NewPlansClient(grpctest.Serve(t, func(s *grpc.Server) { api.RegisterPlansServer(s, watched{}) }, planner.NewIntake(cost, cost).Options()...))
	for range 3 {
		stream, err := client.Watch(t.Context(), r)
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
	}
}

// However many compressed messages come, and whatever they are, few are decompressed at a time, and
// all get their turn.
func TestMessagesAreDecompressedInTurns(t *testing.T) {
	client := api.NewPlannerClient(grpctest.Serve(t, func(s *grpc.Server) { api.RegisterPlannerServer(s, &planner.ReportStore{}) },
		planner.NewIntake(planner.MessageMemory, planner.ReportMemory).Options()...))
	report := func(name string, job string) error {
		stream, err := client.Report(t.Context(), grpc.UseCompressor(gzip.Name))
		if err == nil {
			if err = stream.Send(&api.HostReport{Host: name, Jobs: []*api.JobReport{{Job: job}}}); err == nil {
				_, err = stream.Recv()
			}
		}
		return err
	}
	tooLong := strings.Repeat("x", planner.MessageBytes+1)
	for range 6 { // more than there are turns
		if err := report("bomb", tooLong); err == nil || !strings.Contains(err.Error(), "more than 16777216 bytes") {
			t.Fatalf("a bomb is answered with %v", err)
		}
	}
	require.NoError(t, report("fine", "j"))
}

// Fields that the planner does not know are not kept with a report: nothing counts their memory.
func TestUnknownFieldsAreNotKept(t *testing.T) {
	store := &planner.ReportStore{}
	client := api.NewPlannerClient(grpctest.Serve(t, func(s *grpc.Server) { api.RegisterPlannerServer(s, store) },
		planner.NewIntake(planner.MessageMemory, planner.ReportMemory).Options()...))
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, 1<<10))
	job := &api.JobReport{Job: "j"}
	job.ProtoReflect().SetUnknown(unknown)
	r := &api.HostReport{Host: "a", Jobs: []*api.JobReport{job}}
	r.ProtoReflect().SetUnknown(unknown)
	stream := require.Value(client.Report(t.Context()))(t)
	require.NoError(t, stream.Send(r))
	require.Value(stream.Recv())(t)
	got := store.All()[0]
	if n := len(got.ProtoReflect().GetUnknown()) + len(got.GetJobs()[0].ProtoReflect().GetUnknown()); n > 0 {
		t.Errorf("%d bytes of unknown fields are kept", n)
	}
}

// slow takes one report a stream, and has it until it is released.
type slow struct {
	api.UnimplementedPlannerServer
	has, release chan struct{}
}

func (s slow) Report(stream grpc.BidiStreamingServer[api.HostReport, api.Taken]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	s.has <- struct{}{}
	<-s.release
	return stream.Send(&api.Taken{})
}

// A report for which there is no memory just now waits for those before it; one that
// could never have enough is refused.
func TestReportsWaitForMemory(t *testing.T) {
	const most = 1 << 20
	s := slow{has: make(chan struct{}), release: make(chan struct{})}
	in := planner.NewIntake(2*most, most)
	client := api.NewPlannerClient(grpctest.Serve(t, func(g *grpc.Server) { api.RegisterPlannerServer(g, s) }, in.Options()...))
	send := func(blocks int) grpc.BidiStreamingClient[api.HostReport, api.Taken] {
		t.Helper()
		stream := require.Value(client.Report(t.Context()))(t)
		r := &api.HostReport{Jobs: []*api.JobReport{{Blocks: make([]*api.Block, blocks)}}}
		for i := range r.GetJobs()[0].GetBlocks() {
			r.Jobs[0].Blocks[i] = &api.Block{}
		}
		require.NoError(t, stream.Send(r))
		return stream
	}
	blocks := most * 2 / 3 / blockMemory(t)
	first := send(blocks)
	<-s.has
	second := send(blocks)
	answered := make(chan error, 1)
	go func() {
		_, err := second.Recv()
		answered <- err
	}()
	for !in.Waits() {
		select {
		case err := <-answered:
			t.Fatalf("the second report did not wait: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	if _, err := send(2 * blocks).Recv(); err == nil || !strings.Contains(err.Error(), "more than is left") {
		t.Errorf("a report of more than all memory is answered with %v", err)
	}
	s.release <- struct{}{}
	if _, err := first.Recv(); err != nil {
		t.Error(err)
	}
	select {
	case <-s.has:
	case err := <-answered:
		t.Fatalf("the second report was not handled: %v", err)
	}
	s.release <- struct{}{}
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// blockMemory is what a block of a report costs.
func blockMemory(t *testing.T) int {
	const n = 1 << 10
	cost := require.Value(planner.ReportCost(repeated(number("blocks"), nil, n), (&api.HostReport{}).ProtoReflect().Descriptor()))(t)
	return cost / n
}

func total() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// The newest reports of all hosts together have a bound.
func TestKeptReportsHaveABound(t *testing.T) {
	const most = 128 << 20
	store := &planner.ReportStore{Memory: most}
	conn := grpctest.Serve(t, func(s *grpc.Server) { api.RegisterPlannerServer(s, store) },
		planner.NewIntake(planner.MessageMemory, planner.ReportMemory).Options()...)
	client := api.NewPlannerClient(conn)
	refused := 0
	for i := range 8 {
		stream := require.Value(client.Report(t.Context()))(t)
		r := &api.HostReport{Host: fmt.Sprint(i), Jobs: []*api.JobReport{{Job: "j", Blocks: make([]*api.Block, 400_000)}}}
		for k := range r.GetJobs()[0].GetBlocks() {
			r.Jobs[0].Blocks[k] = &api.Block{}
		}
		require.NoError(t, stream.Send(r))
		if _, err := stream.Recv(); err != nil {
			refused++
		}
	}
	held := 0
	for _, r := range store.All() {
		held += planner.HeldBytes(r)
	}
	if refused == 0 || held > most {
		t.Errorf("%d reports refused, %d bytes are kept; want at most %d", refused, held, most)
	}
}

// What no message is, is refused and never read beyond its end.
func FuzzCost(f *testing.F) {
	f.Add([]byte{0x12, 0x03, 0x0a, 0x01})
	f.Add(repeated(number("uses"), []byte{0x12, 0x02, 0, 0}, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &api.HostReport{}
		cost, err := planner.ReportCost(b, r.ProtoReflect().Descriptor())
		if proto.Unmarshal(b, r) == nil && err != nil {
			t.Fatalf("a message that can be decoded has no cost: %v", err)
		}
		if err == nil && cost <= 0 {
			t.Fatalf("a cost of %d", cost)
		}
	})
}
