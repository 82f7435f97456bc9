package ledger

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// messages are whole messages that only the proxy has, in a file of their own beside the
// ledger. Each is written before it counts as kept, and marked when it is dropped. When none
// is left the file is written from its beginning again; when most of it is dropped it is
// compacted.
//
//	message  kind u8 (1, when dropped 2), dialect u8, frames u16, body's bytes
//	         u32, generation u32, CRC u32; server, app, customer, timestamp, place
//	         i32 each; then of each frame its bytes u32 and the frame
//
// The CRC-32C covers everything but itself and the kind, so that dropping a message is a
// store of one byte. The generation grows each time the file is written from its beginning:
// the first message of an earlier generation, or that does not fit its CRC because a kill cut
// it off, is the end of the file.
type messages struct {
	path       string
	space      *Space
	file       *os.File // nil: there is none
	room       int64    // bytes of the file that are reserved in space
	end        int64    // where the next message goes
	generation uint32
	live       map[messageKey]message
	lost       uint64 // messages that could not be kept
	buf        []byte // of encode; keepRoom at most
}

// messageKey identifies a kept message: a request, and Waits or the place of its part.
type messageKey struct {
	id    route.ID
	place int32
}

// message is where a kept message is in the file.
type message struct{ at, size int64 }

const (
	kindMessage    = 1
	kindDropped    = 2
	messageHeader  = 16
	messageFixed   = messageHeader + 20
	messageCRC     = 12
	maxMessage     = 1 << 30 // bytes of one; a request has at most 256 MiB
	maxFrames      = 16
	messagesSuffix = ".messages"
	// keepRoom is how large the file may stay when it is empty.
	keepRoom = 1 << 20
	// mostlyDropped is the number of bytes from which on a file that is three quarters
	// dropped is compacted.
	mostlyDropped = 4 << 20
)

func newMessages(path string, s *Space) *messages {
	return &messages{path: path + messagesSuffix, space: s, live: map[messageKey]message{}}
}

// Lost returns the number of messages that could not be kept, because the disk was full or
// the folder at its limit. A kill loses those of them that still wait.
func (l *Ledger) Lost() uint64 { return l.messages.lost }

// Whole returns the number of messages that are kept now.
func (l *Ledger) Whole() int { return len(l.messages.live) }

// Keep implements route.Ledger. A failure is only counted: the request goes on, without
// surviving a kill.
func (l *Ledger) Keep(m route.Message) {
	if err := l.messages.keep(m); err != nil {
		l.messages.lost++
	}
}

// Drop implements route.Ledger.
func (l *Ledger) Drop(id route.ID, place int32) { l.messages.drop(messageKey{id, place}) }

// Messages implements route.Ledger.
func (l *Ledger) Messages() []route.Message { return l.messages.readAll() }

// keep appends a message to the file. Room is reserved before the write, so that a folder at
// its limit refuses the message instead of failing half way. A file that is mostly dropped
// messages is compacted first.
func (s *messages) keep(m route.Message) error {
	k := messageKey{m.ID, m.Place}
	// The router may keep the same message again after a repetition.
	if _, there := s.live[k]; there {
		return nil
	}
	if len(m.Frames) > maxFrames {
		return fmt.Errorf("a message of %d frames", len(m.Frames))
	}
	if s.file == nil {
		f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		s.file = f
	}
	// used is computed only beyond that size: it goes over all messages.
	if s.end > mostlyDropped && s.end > 4*s.used() {
		if err := s.compact(); err != nil {
			return err
		}
	}
	b := s.encode(m)
	if len(b) > maxMessage {
		return fmt.Errorf("a message of %d bytes", len(b))
	}
	// Room within the file is never given back by dropping, only by writing it anew.
	if more := s.end + int64(len(b)) - s.room; more > 0 {
		if err := s.space.reserve(more); err != nil {
			return err
		}
		s.room += more
	}
	if _, err := s.file.WriteAt(b, s.end); err != nil {
		return err
	}
	s.live[k] = message{s.end, int64(len(b))}
	s.end += int64(len(b))
	return nil
}

// used returns the bytes of the messages that are kept.
func (s *messages) used() (n int64) {
	for _, m := range s.live {
		n += m.size
	}
	return n
}

// encode lays a message out as a record: a header with its id, the frames with their
// lengths, and a checksum over all, by which a record that a kill cut off is
// recognised. It is valid until the next call.
func (s *messages) encode(m route.Message) []byte {
	n := 0
	for _, f := range m.Frames {
		n += 4 + len(f)
	}
	// One buffer for all messages but very large ones, which would stay for the life of the
	// worker.
	b := slices.Grow(s.buf[:0], messageFixed+n)[:messageFixed]
	if cap(b) <= keepRoom {
		s.buf = b
	}
	clear(b)
	b[0], b[1] = kindMessage, byte(m.Dialect)
	binary.LittleEndian.PutUint16(b[2:], uint16(len(m.Frames)))
	binary.LittleEndian.PutUint32(b[4:], uint32(n))
	binary.LittleEndian.PutUint32(b[8:], s.generation)
	for i, v := range []int32{m.ID.Server, m.ID.App, m.ID.Customer, m.ID.Timestamp, m.Place} {
		binary.LittleEndian.PutUint32(b[messageHeader+4*i:], uint32(v))
	}
	for _, f := range m.Frames {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	binary.LittleEndian.PutUint32(b[messageCRC:], messageSum(b))
	return b
}

// messageSum returns the CRC of a message's record. The kind is not covered: dropping changes
// it.
func messageSum(b []byte) uint32 {
	sum := crc32.Checksum(b[1:messageCRC], castagnoli)
	return crc32.Update(sum, castagnoli, b[messageHeader:])
}

// drop marks a message as dropped. Where that fails the whole file goes: otherwise the next
// proxy would send again what has been sent.
func (s *messages) drop(k messageKey) {
	m, there := s.live[k]
	if !there {
		return
	}
	delete(s.live, k)
	if _, err := s.file.WriteAt([]byte{kindDropped}, m.at); err != nil {
		s.lost += uint64(len(s.live))
		s.remove()
		return
	}
	if len(s.live) == 0 {
		s.rewriteFile()
	}
}

// dropAnswers drops the answers to a request.
func (s *messages) dropAnswers(id route.ID, owners int) {
	if len(s.live) == 0 {
		return
	}
	for place := range int32(owners) {
		s.drop(messageKey{id, place})
	}
}

// rewriteFile has the next message written to the beginning of the file, and shrinks a large
// one.
func (s *messages) rewriteFile() {
	s.end = 0
	s.generation++
	if s.room > keepRoom && s.file.Truncate(0) == nil {
		s.space.give(s.room)
		s.room = 0
	}
}

// compact copies the messages that are left to another file, and renames it over the old one.
func (s *messages) compact() error {
	left := s.readAll()
	// The copy restores everything where writing the other file fails.
	before := *s
	s.path, s.file, s.room, s.end, s.live = before.path+".new", nil, 0, 0, map[messageKey]message{}
	for _, m := range left {
		if err := s.keep(m); err != nil {
			s.remove()
			*s = before
			return err
		}
	}
	if err := os.Rename(s.path, before.path); err != nil {
		s.remove()
		*s = before
		return err
	}
	s.path = before.path
	s.space.give(before.room)
	return before.file.Close()
}

// clear removes files that nobody takes up.
func (s *messages) clear() {
	os.Remove(s.path)
	os.Remove(s.path + ".new")
}

// remove gives the file up.
func (s *messages) remove() {
	clear(s.live)
	if s.file != nil {
		os.Remove(s.path)
	}
	s.close()
}

// close closes the file, which stays on disk.
func (s *messages) close() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.space.give(s.room)
	s.file, s.room, s.end = nil, 0, 0
	return err
}

// readAll returns the kept messages, the oldest first. One that cannot be read is lost.
func (s *messages) readAll() (all []route.Message) {
	at := make([]message, 0, len(s.live))
	for _, m := range s.live {
		at = append(at, m)
	}
	slices.SortFunc(at, func(a, b message) int { return cmp.Compare(a.at, b.at) })
	for _, m := range at {
		b := make([]byte, m.size)
		if _, err := s.file.ReadAt(b, m.at); err != nil {
			s.lost++
			continue
		}
		kept, err := decodeMessage(b)
		if err != nil {
			s.lost++
			continue
		}
		all = append(all, kept)
	}
	return all
}

// decodeMessage is the inverse of encode; the frames refer to b's memory.
func decodeMessage(b []byte) (m route.Message, err error) {
	v := func(i int) int32 { return int32(binary.LittleEndian.Uint32(b[messageHeader+4*i:])) }
	m = route.Message{ID: route.ID{Server: v(0), App: v(1), Customer: v(2), Timestamp: v(3)}, Place: v(4), Dialect: pslite.Dialect(b[1])}
	frames, rest := int(binary.LittleEndian.Uint16(b[2:])), b[messageFixed:]
	for range frames {
		if len(rest) < 4 || uint64(len(rest)-4) < uint64(binary.LittleEndian.Uint32(rest)) {
			return m, errors.New("its frames are longer than it")
		}
		n := int(binary.LittleEndian.Uint32(rest))
		m.Frames = append(m.Frames, rest[4:4+n:4+n])
		rest = rest[4+n:]
	}
	if len(rest) > 0 || frames == 0 {
		return m, errors.New("its frames are shorter than it")
	}
	return m, nil
}

// open takes up the file of a previous proxy.
func (s *messages) open() error {
	os.Remove(s.path + ".new")
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening held messages: %w", err)
	}
	s.file = f
	info, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("opening held messages: %w", err), s.close())
	}
	if err := s.space.reserve(info.Size()); err != nil {
		return errors.Join(fmt.Errorf("opening held messages: %w", err), s.close())
	}
	s.room = info.Size()
	in := bufio.NewReader(io.NewSectionReader(f, 0, s.room))
	for first := true; ; first = false {
		b, generation, ok := s.readMessage(in)
		// The first message tells the file's generation.
		if !ok || !first && generation != s.generation {
			break
		}
		s.generation = generation
		if m, err := decodeMessage(b); err == nil && b[0] == kindMessage {
			s.live[messageKey{m.ID, m.Place}] = message{s.end, int64(len(b))}
		}
		s.end += int64(len(b))
	}
	if len(s.live) == 0 {
		s.rewriteFile()
		return nil
	}
	// Behind what does not fit its CRC whole messages may follow: with another one of
	// that size before them they would be there again.
	if err := f.Truncate(s.end); err != nil {
		return errors.Join(fmt.Errorf("opening held messages: %w", err), s.close())
	}
	s.space.give(s.room - s.end)
	s.room = s.end
	return nil
}

// readMessage reads the next message; false where none follows, or none that is whole.
func (s *messages) readMessage(in *bufio.Reader) (b []byte, generation uint32, ok bool) {
	head := make([]byte, messageFixed)
	if _, err := io.ReadFull(in, head); err != nil {
		return nil, 0, false
	}
	size := int64(binary.LittleEndian.Uint32(head[4:]))
	// Checked before that much memory is allocated: the header may be garbage.
	if size > maxMessage || s.end+messageFixed+size > s.room || head[0] != kindMessage && head[0] != kindDropped {
		return nil, 0, false
	}
	b = append(head, make([]byte, size)...)
	if _, err := io.ReadFull(in, b[messageFixed:]); err != nil {
		return nil, 0, false
	}
	return b, binary.LittleEndian.Uint32(b[8:]), messageSum(b) == binary.LittleEndian.Uint32(b[messageCRC:])
}
