package planner

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

// lateStream decodes its message once give is closed.
type lateStream struct {
	grpc.ServerStream
	intake *Intake
	give   chan struct{}
	data   mem.BufferSlice
}

func (s lateStream) RecvMsg(m any) error {
	<-s.give
	return s.intake.Unmarshal(s.data, m)
}

// The memory of a message that is decoded after its handler has returned does not stay reserved.
func TestLateMessageTakesNoMemory(t *testing.T) {
	const all = 1 << 20
	in := NewIntake(all, all)
	b, err := proto.Marshal(&api.CodecReport{Host: "a"})
	require.NoError(t, err)
	late := lateStream{intake: in, give: make(chan struct{}), data: mem.BufferSlice{mem.SliceBuffer(b)}}
	received := make(chan error, 1)
	err = in.stream(nil, late, nil, func(_ any, s grpc.ServerStream) error {
		go func() { received <- s.RecvMsg(&api.CodecReport{}) }()
		return nil
	})
	close(late.give)
	require.NoError(t, <-received)
	if err != nil || !in.bound.TryAcquire(all) {
		t.Errorf("%v; some memory stays reserved", err)
	}
}
