// This file bounds the memory of messages that the planner receives. A few kilobytes on the wire
// can decompress to many megabytes, and those decode to a hundred times as much, for instance as a
// list of empty messages.
//
// An [Intake] replaces the codec of a gRPC server. It computes from a message's wire form how much
// memory the decoded message will take, reserves that, and only then decodes. A message too large
// for the bounds is refused with an error that names them. Whoever keeps parts of a message after
// it was handled accounts for them separately, with [HeldBytes].

package planner

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip" // agents compress reports
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Limits of messages.
const (
	// MessageBytes is the size of the largest message on the wire, after decompression.
	MessageBytes = 16 << 20
	// MessageMemory is the most memory that one decoded message may take.
	MessageMemory = 96 << 20
	// ReportMemory is the most memory that all messages take which are decoded and not yet handled.
	ReportMemory = 192 << 20
	// patience is how long a message waits for memory, waitingBytes the bound on the wire bytes of
	// all that wait. When all hosts come back to a restarted planner at once, waiting is cheaper
	// than refusing: a refused host would connect and send everything again.
	patience     = 10 * time.Second
	waitingBytes = 64 << 20
	// streams is how many calls one connection may have open.
	streams = 64
)

// unpacking is how many messages are decompressed at a time. Each is whole in memory by then, and
// its decoded form is counted next.
const unpacking = 4

func init() {
	encoding.RegisterCompressor(unpacker{encoding.GetCompressor(gzip.Name), semaphore.NewWeighted(unpacking)})
}

// An unpacker decompresses at most MessageBytes of a message, and few messages at a time.
type unpacker struct {
	encoding.Compressor
	turns *semaphore.Weighted
}

// Decompress implements [encoding.Compressor]. gRPC reads what it returns to the end, to an error,
// or to one byte more than MessageBytes.
func (u unpacker) Decompress(r io.Reader) (io.Reader, error) {
	if err := u.turns.Acquire(context.Background(), 1); err != nil {
		return nil, err
	}
	plain, err := u.Compressor.Decompress(r)
	if err != nil {
		u.turns.Release(1)
		return nil, err
	}
	return &plainReader{plain, sync.OnceFunc(func() { u.turns.Release(1) }), 0}, nil
}

// plainReader reads a message that is being decompressed.
type plainReader struct {
	io.Reader
	done func()
	n    int
}

func (u *plainReader) Read(b []byte) (int, error) {
	n, err := u.Reader.Read(b)
	if u.n += n; err == nil && u.n > MessageBytes {
		err = fmt.Errorf("more than %d bytes", MessageBytes)
	}
	if err != nil {
		u.done()
	}
	return n, err
}

// Close implements [io.Closer], which gRPC calls.
func (u *plainReader) Close() error { u.done(); return nil }

// An Intake is an [encoding.CodecV2] that decodes messages within a bound on memory. Memory is
// reserved in Unmarshal and released by the interceptors of Options, when the handler is done with
// the message. It is safe for concurrent use.
type Intake struct {
	encoding.CodecV2
	most int
	all  int64
	// Bytes of all decoded messages, up to all.
	bound *semaphore.Weighted
	// Wire bytes of messages that wait for bound, up to waitingBytes.
	waiting *semaphore.Weighted
	// By message, the int64 that it has reserved.
	taken sync.Map
}

// NewIntake returns an Intake for messages of at most most bytes of memory each, and all bytes
// together.
func NewIntake(most, all int) *Intake {
	return &Intake{CodecV2: encoding.GetCodecV2("proto"), most: most, all: int64(all),
		bound: semaphore.NewWeighted(int64(all)), waiting: semaphore.NewWeighted(waitingBytes)}
}

// Options returns the options with which a gRPC server uses the Intake. They must come before other
// interceptors, so that the memory of calls that those refuse is released too.
func (i *Intake) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MessageBytes), grpc.MaxConcurrentStreams(streams), grpc.ForceServerCodecV2(i),
		grpc.ChainUnaryInterceptor(i.unary), grpc.ChainStreamInterceptor(i.stream),
	}
}

// Marshal implements [encoding.CodecV2]. A message with a method Encoded is sent as that returns
// it: events for many watchers are encoded once.
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

// Unmarshal implements [encoding.CodecV2]. It may block for up to patience until other messages
// were handled. gRPC reports a refusal as INTERNAL.
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
	// Fields that this version does not know would be kept, uncounted, with what is kept of a
	// message.
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b.ReadOnlyData(), m); err != nil {
		i.bound.Release(int64(size))
		return err
	}
	// The caller reuses a message: only the newest content counts.
	if before, ok := i.taken.Swap(m, int64(size)); ok {
		i.bound.Release(before.(int64))
	}
	return nil
}

// acquire reserves size bytes for a message of wire bytes. It waits if others hold the memory,
// unless too much waits already. No handler waits for a message while it holds another, so
// reservations are always released and there is no deadlock.
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

// handled releases what a message has reserved.
func (i *Intake) handled(m any) {
	if size, ok := i.taken.LoadAndDelete(m); ok {
		i.bound.Release(size.(int64))
	}
}

// unary releases a request's memory when its handler has returned.
func (i *Intake) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	defer i.handled(request)
	return handle(ctx, request)
}

// stream releases the memory of each message of a stream when the handler asks for the next one or
// returns. One that is sent a single request, and answers for as long as the caller likes, has read
// it when it sends the first answer, and accounts for what it keeps.
func (i *Intake) stream(service any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	own := &stream{ServerStream: s, intake: i, asked: info != nil && !info.IsClientStream}
	defer own.endStream()
	return handle(service, own)
}

// A stream remembers which of its messages is being handled, which is the last one received. A
// handler may receive in a goroutine of its own that is still at it when the handler returns.
type stream struct {
	grpc.ServerStream
	intake *Intake
	asked  bool // by a single message

	mu   sync.Mutex // guards the rest
	last any
	over bool // the handler has returned
}

// RecvMsg implements [grpc.ServerStream].
func (s *stream) RecvMsg(m any) error {
	s.replaceLast(nil)
	err := s.ServerStream.RecvMsg(m)
	s.replaceLast(m)
	return err
}

// SendMsg implements [grpc.ServerStream].
func (s *stream) SendMsg(m any) error {
	if s.asked {
		s.replaceLast(nil)
	}
	return s.ServerStream.SendMsg(m)
}

// replaceLast releases the memory of the last message and remembers another one. If nobody will ask
// for more it releases that too.
func (s *stream) replaceLast(m any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLast()
	if s.last = m; s.over {
		s.releaseLast()
	}
}

// endStream releases the memory of the last message, and of one that is still to come.
func (s *stream) endStream() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.releaseLast()
}

// releaseLast releases the memory of the last message. The caller holds s.mu.
func (s *stream) releaseLast() {
	if s.last != nil {
		s.intake.handled(s.last)
		s.last = nil
	}
}
