package spare

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// mostWaiting is how many bytes of answers may wait on a link before the next request is read.
	mostWaiting = 64 << 20
	// mostKept is the size of the largest buffer that a link keeps for the next answer.
	mostKept   = 8 << 20
	readBuffer = 16 << 10
)

// Server offers one store over many links. The store must not be used otherwise while links are
// served.
type Server struct {
	log     *slog.Logger
	room    *semaphore.Weighted
	traffic *Traffic
	within  time.Duration // see requestWithin

	mu       sync.Mutex        // guards what follows, and is not held while anything is read or written
	store    *Store            // nil once it was taken away
	versions map[uint64]uint64 // by key: how many pushes had it
}

// ServerOptions of a [Server].
type ServerOptions struct {
	// Room bounds the memory of the requests that are read and done, over all servers that have the same. It has
	// [LeastRoom] bytes at least, or large requests are never done. nil: there is no bound.
	Room *semaphore.Weighted
	// Traffic counts the bytes of its links. It may be nil.
	Traffic *Traffic
	Log     *slog.Logger
}

// NewServer returns a server of a store.
func NewServer(s *Store, o ServerOptions) *Server {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{log: log, room: o.Room, traffic: o.Traffic, within: requestWithin, store: s, versions: map[uint64]uint64{}}
}

// Release takes the store away, and returns it: the caller may close it. Links end with the next
// request, which is not answered.
func (s *Server) Release() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	store := s.store
	s.store = nil
	return store
}

// errReleased ends the links of a server that has no store any more.
var errReleased = errors.New("this spare server is closed")

// Serve serves a link until it or ctx ends, and closes it. Its end is no error unless the other side
// sent what is not allowed, or a request that stalled, or for which there was no memory. The client sends such
// a request again.
func (s *Server) Serve(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := newAnswerLine(conn, s.traffic)
	stop := context.AfterFunc(ctx, l.closeLink)
	defer stop()
	written := make(chan struct{})
	go func() {
		defer close(written)
		l.writeAll()
		cancel() // nobody waits for memory any more
	}()
	free, err := s.free()
	if err == nil {
		l.putFrame(appendFree(nil, free))
		err = s.serveRequests(ctx, l)
	}
	l.closeLink()
	<-written
	if err != nil && !errors.Is(err, errForm) && !errors.Is(err, errStalled) && !errors.Is(err, errNoMemory) {
		s.log.Debug("a link to this spare server ended", "remote", conn.RemoteAddr(), "error", err)
		err = nil
	}
	return err
}

// serveRequests reads requests and does them, until the link ends.
func (s *Server) serveRequests(ctx context.Context, l *answerLine) error {
	requests := newIntake(l.conn, s.traffic, s.room, s.within)
	keeps := notes{}
	for l.waitRoom() {
		err := s.serveRequest(ctx, l, requests, keeps)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// serveRequest reads a request and does it. When it returns, nothing refers to the request's memory any more.
func (s *Server) serveRequest(ctx context.Context, l *answerLine, requests *intake, keeps notes) error {
	defer requests.releaseRoom()
	m, err := requests.readRequest(ctx)
	if err != nil {
		return err
	}
	answer, err := s.doRequest(&m, keeps, l.takeBuffer())
	if err == nil {
		l.putFrame(answer)
	}
	return err
}

// free returns the bytes that are free in the store.
func (s *Server) free() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return 0, errReleased
	}
	return s.store.Free(), nil
}

// doRequest does a request of a link whose client keeps values, and returns the answer's frame, for which it uses b's
// memory. An error ends the link.
func (s *Server) doRequest(m *message, keeps notes, b []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return nil, errReleased
	}
	var err error
	if m.push {
		err = s.store.Push(m.asks, m.kind, m.pieces)
		for i := range m.pieces {
			if key := m.pieces[i].Key; err == nil {
				s.versions[key]++
			}
		}
	}
	if err == nil && m.pull {
		var answer []byte
		if answer, err = s.appendValues(b, m, keeps); err == nil {
			return answer, nil
		}
	}
	if err != nil {
		s.log.Debug("a request to this spare server failed", "error", err)
		return appendFailure(b, m.number, s.store.Free(), err), nil
	}
	return appendAnswerHead(b, m.number, codeDone, 0, s.store.Free(), 0, 0), nil
}

// appendValues appends an answer with the values of a request's keys, without those that the client keeps.
func (s *Server) appendValues(b []byte, m *message, keeps notes) ([]byte, error) {
	if m.keep == keepAnew {
		for i := range m.pieces {
			delete(keeps, m.pieces[i].Key)
		}
	}
	size, spared := 4*len(m.pieces), 0
	for i := range m.pieces {
		key := m.pieces[i].Key
		value, _ := s.store.Pull(key) // AppendValue says what is not there
		if s.isKept(m, i, keeps) {
			spared += len(value)
			continue
		}
		if size += len(value); size > mostFrame-answerHead {
			return nil, fmt.Errorf("a pull's values have more than %d bytes", mostFrame-answerHead)
		}
	}
	if whole := lengthSize + answerHead + size; cap(b)-len(b) < whole {
		b = append(make([]byte, 0, len(b)+whole), b...)
	}
	b = appendAnswerHead(b, m.number, codeDone, 1, s.store.Free(), len(m.pieces), size)
	for i := range m.pieces {
		n := uint32(leftOut)
		if !s.isKept(m, i, keeps) {
			value, _ := s.store.Pull(m.pieces[i].Key)
			n = uint32(len(value))
		}
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	for i := range m.pieces {
		if s.isKept(m, i, keeps) {
			continue
		}
		var err error
		if b, err = s.store.AppendValue(b, m.pieces[i].Key); err != nil {
			return nil, err
		}
	}
	s.noteKept(m, keeps)
	s.traffic.addSpared(spared)
	return b, nil
}

// isKept reports whether the client keeps the value that the key of piece i has now, and does without it.
func (s *Server) isKept(m *message, i int, keeps notes) bool {
	key := m.pieces[i].Key
	version, ok := keeps[key]
	return ok && m.keep == keepOrNot && version == s.versions[key]
}

// noteKept notes what the client keeps once it has the answer to a request.
func (s *Server) noteKept(m *message, keeps notes) {
	if m.keep == keepNone {
		return
	}
	for i := range m.pieces {
		key := m.pieces[i].Key
		if _, ok := keeps[key]; ok || len(keeps) < mostNoted {
			keeps[key] = s.versions[key]
		}
	}
}

// answerLine is the answers that wait for a link.
//
// mu guards frames, the answers in order, bytes, their size with that of the one being written, and
// ended, after which nothing is put or written any more. kept is a buffer for the next answer.
type answerLine struct {
	conn    net.Conn
	traffic *Traffic

	mu      sync.Mutex
	changed *sync.Cond
	frames  [][]byte
	bytes   int
	ended   bool
	kept    []byte
}

func newAnswerLine(conn net.Conn, t *Traffic) *answerLine {
	l := &answerLine{conn: conn, traffic: t}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// closeLink closes the link.
func (l *answerLine) closeLink() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended, l.frames, l.kept = true, nil, nil
		l.conn.Close()
		l.changed.Broadcast()
	}
}

// putFrame lets a frame wait to be written.
func (l *answerLine) putFrame(frame []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.frames = append(l.frames, frame)
		l.bytes += len(frame)
		l.changed.Broadcast()
	}
}

// takeBuffer returns memory for an answer, without content.
func (l *answerLine) takeBuffer() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.kept
	l.kept = nil
	return b[:0]
}

// waitRoom waits until another answer may wait; false if the link has ended.
func (l *answerLine) waitRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.ended && l.bytes > mostWaiting {
		l.changed.Wait()
	}
	return !l.ended
}

// nextFrame waits for a frame and returns it; false if the link has ended.
func (l *answerLine) nextFrame() (frame []byte, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.ended && len(l.frames) == 0 {
		l.changed.Wait()
	}
	if l.ended {
		return nil, false
	}
	frame = l.frames[0]
	l.frames[0] = nil
	l.frames = l.frames[1:]
	return frame, true
}

// noteWritten gives a frame's memory back.
func (l *answerLine) noteWritten(frame []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes -= len(frame)
	if !l.ended && cap(frame) <= mostKept && cap(frame) > cap(l.kept) {
		l.kept = frame
	}
	l.changed.Broadcast()
}

// writeAll writes frames until the link ends.
func (l *answerLine) writeAll() {
	for {
		frame, ok := l.nextFrame()
		if !ok {
			return
		}
		n, err := l.conn.Write(frame)
		l.traffic.addSent(int64(n))
		if err != nil {
			l.closeLink()
			return
		}
		l.noteWritten(frame)
	}
}
