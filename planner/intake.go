// This part bounds the memory of what the planner is sent. A report of a few
// kilobytes can be of many megabytes once it is decompressed, and of a hundred
// times as many once it is decoded.
//
// In come messages of gRPC's wire; out come the same, decoded, or an error that
// says by how much they are over a bound. [Intake.Options] are for a gRPC server;
// the planner's command has them. Memory that keeps parts of a message afterwards
// is accounted for by its holder, who can use [ReportCost] too.

package planner

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Limits of messages.
const (
	// MessageBytes is the size of the largest message on the wire, decompressed.
	MessageBytes = 16 << 20
	// MessageMemory is what the largest message takes once it is decoded.
	MessageMemory = 96 << 20
	// ReportMemory is what all messages take together that are decoded and not yet
	// handled.
	ReportMemory = 192 << 20
	// patience is how long a message waits for memory, and waitingBytes how much all that
	// wait may be on the wire: hosts that all come back to a planner wait for each other
	// instead of being refused, which would have them connect and send all of it again.
	patience     = 10 * time.Second
	waitingBytes = 64 << 20
	// streams is how many calls one connection may have open.
	streams = 64
)

// An Intake decodes messages within a bound. It is an [encoding.CodecV2].
type Intake struct {
	encoding.CodecV2
	most    int
	all     int64
	bound   *semaphore.Weighted // of all
	waiting *semaphore.Weighted // of waitingBytes
	taken   sync.Map            // by message: what it takes, int64; until it is handled
}

// NewIntake returns an Intake that decodes messages of at most most bytes of memory
// each, and all bytes together.
func NewIntake(most, all int) *Intake {
	return &Intake{CodecV2: encoding.GetCodecV2("proto"), most: most, all: int64(all),
		bound: semaphore.NewWeighted(int64(all)), waiting: semaphore.NewWeighted(waitingBytes)}
}

// Options have a gRPC server decode by the Intake.
func (i *Intake) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MessageBytes), grpc.MaxConcurrentStreams(streams), grpc.ForceServerCodecV2(i),
		grpc.ChainUnaryInterceptor(i.unary), grpc.ChainStreamInterceptor(i.stream),
	}
}

// Marshal implements [encoding.CodecV2]. A message that has been encoded already, as
// one that goes to many, is not encoded again.
func (i *Intake) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(interface{ Encoded() ([]byte, error) })
	if !ok {
		return i.CodecV2.Marshal(v)
	}
	b, err := m.Encoded()
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Unmarshal implements [encoding.CodecV2]. The message counts until it is handled.
// gRPC reports a refusal as INTERNAL.
func (i *Intake) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return i.CodecV2.Unmarshal(data, v)
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	kind := m.ProtoReflect().Descriptor()
	size, err := ReportCost(b.ReadOnlyData(), kind)
	switch {
	case err != nil:
		return err
	case size > i.most:
		return fmt.Errorf("%s of %d bytes takes %d bytes of memory, at most %d are allowed", kind.Name(), b.Len(), size, i.most)
	case !i.acquire(int64(size), int64(b.Len())):
		return fmt.Errorf("%s takes %d bytes of memory, more than is left for messages just now: send it again later", kind.Name(), size)
	}
	if err := proto.Unmarshal(b.ReadOnlyData(), m); err != nil {
		i.bound.Release(int64(size))
		return err
	}
	if before, ok := i.taken.Swap(m, int64(size)); ok { // the caller uses a message again
		i.bound.Release(before.(int64))
	}
	return nil
}

// acquire reserves memory for a message, by its bytes on the wire. No handler waits for a
// message while it holds another, so reservations are always released and no deadlock is
// possible.
func (i *Intake) acquire(size, wire int64) bool {
	if size > i.all {
		return false
	}
	if i.bound.TryAcquire(size) {
		return true
	}
	if !i.waiting.TryAcquire(wire) {
		return false
	}
	defer i.waiting.Release(wire)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return i.bound.Acquire(ctx, size) == nil
}

// handled gives back what a message took.
func (i *Intake) handled(m any) {
	if size, ok := i.taken.LoadAndDelete(m); ok {
		i.bound.Release(size.(int64))
	}
}

func (i *Intake) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	defer i.handled(request)
	return handle(ctx, request)
}

func (i *Intake) stream(service any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	own := &stream{ServerStream: s, intake: i}
	defer own.handled()
	return handle(service, own)
}

// stream knows which message of a stream is being handled: the last one.
type stream struct {
	grpc.ServerStream
	intake *Intake
	last   any
}

// RecvMsg implements [grpc.ServerStream].
func (s *stream) RecvMsg(m any) error {
	s.handled()
	s.last = m
	return s.ServerStream.RecvMsg(m)
}

func (s *stream) handled() {
	if s.last != nil {
		s.intake.handled(s.last)
		s.last = nil
	}
}
