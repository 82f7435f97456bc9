package shared

import (
	"bufio"
	"encoding/binary"
	"io"

	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/codec/sparsewords"
)

// appendStart appends the first frames of a lane in this direction: all that the sender
// must know, whether or not it was on an earlier lane.
func (s *Store) appendStart(dst []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	dst = append(dst, kindStart)
	dst = binary.AppendUvarint(dst, s.next)
	dst = binary.AppendUvarint(dst, uint64(s.limit))
	s.grants, s.unsaid = false, 0
	for link, t := range s.links {
		dst = appendUsed(dst, link, t)
	}
	for link := range s.gone {
		s.gone[link] = true
		dst = binary.AppendUvarint(append(dst, kindGone), link)
	}
	return dst
}

func appendUsed(dst []byte, link uint64, t *tally) []byte {
	t.dirty = false
	dst = binary.AppendUvarint(append(dst, kindUsed), link)
	return binary.AppendUvarint(dst, t.used)
}

// appendNews appends the frames about changes that the sender does not know of yet.
func (s *Store) appendNews(dst []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsaid = 0
	if s.grants {
		s.grants = false
		dst = binary.AppendUvarint(append(dst, kindLimit), uint64(s.limit))
	}
	for link, t := range s.links {
		if t.dirty {
			dst = appendUsed(dst, link, t)
		}
	}
	for link, told := range s.gone {
		if !told {
			s.gone[link] = true
			dst = binary.AppendUvarint(append(dst, kindGone), link)
		}
	}
	return dst
}

// laneReader reads a lane's frames into a Store.
type laneReader struct {
	store  *Store
	r      *bufio.Reader
	packed []byte
	words  keylist.WordDecoder
	sparse sparsewords.Decoder
}

// read reads the sender's frames until the lane ends. It waits for nothing but the lane, so
// that no link can hold up another.
func (s *Store) read(r *bufio.Reader) error {
	l := laneReader{store: s, r: r}
	for {
		kind, err := r.ReadByte()
		if err != nil {
			return ended(err)
		}
		n, err := readNumber(r)
		if err != nil {
			return err
		}
		switch kind {
		case kindKeep:
			err = l.keep(n)
		case kindPut:
			err = l.put(n)
		case kindDrop:
			s.drop(n)
		case kindWant:
			s.grow(clip(n))
		default:
			err = corrupt("a frame of kind %d from the sending end", kind)
		}
		if err != nil {
			return err
		}
	}
}

// keep reads the numbers of the entries that are still of use: after a lane broke the
// sender cannot know which of its drops were read. Their count is bounded by what the
// Store could have granted.
func (l *laneReader) keep(count uint64) error {
	numbers := map[uint64]bool{}
	for range count {
		n, err := readNumber(l.r)
		if err != nil {
			return err
		}
		numbers[n] = true
		if len(numbers) > l.store.most/Least+1 {
			return corrupt("%d numbers are to be kept", count)
		}
	}
	l.store.keep(numbers)
	return nil
}

// put reads an entry: its values into a buffer of their own, as they are, or packed
// into the reader's buffer and unpacked from there. It is entered only when it is
// complete, so that no link sees a part of it.
func (l *laneReader) put(number uint64) error {
	form, err := l.r.ReadByte()
	if err != nil {
		return err
	}
	size, err := readNumber(l.r)
	if err != nil {
		return err
	}
	onLane := size
	if form != Plain {
		if onLane, err = readNumber(l.r); err != nil {
			return err
		}
		if onLane >= size {
			return corrupt("%d bytes on the lane for %d of values", onLane, size)
		}
	}
	// Before a byte is read: sizes are bounded by the limit, whatever the frame claims.
	values, err := l.store.room(number, clip(size), clip(onLane))
	if err != nil {
		return err
	}
	if form == Plain {
		if _, err := io.ReadFull(l.r, values); err != nil {
			return err
		}
		l.store.add(number, values, len(values))
		return nil
	}
	if cap(l.packed) < int(onLane) {
		l.packed = make([]byte, onLane)
	}
	l.packed = l.packed[:onLane]
	if _, err := io.ReadFull(l.r, l.packed); err != nil {
		return err
	}
	if err := l.unpack(form, values); err != nil {
		return err
	}
	l.store.add(number, values, int(onLane))
	return nil
}

// unpack fills values with what l.packed stands for.
func (l *laneReader) unpack(form byte, values []byte) error {
	switch form {
	case Words:
		words, rest, err := l.words.Decode(l.packed)
		if err != nil || len(rest) > 0 || copy(values, words) != len(values) || len(words) != len(values) {
			return corrupt("%d bytes of words for %d of values, %d left: %w", len(l.packed), len(values), len(rest), orCorrupt(err))
		}
		return nil
	case Sparse:
		size, err := l.sparse.Open(l.packed, len(values))
		if err != nil || size != len(values) {
			return corrupt("%d bytes of words of which most are equal for %d of values: %w", size, len(values), orCorrupt(err))
		}
		rest, err := l.sparse.Fill(values)
		if err != nil || len(rest) > 0 {
			return corrupt("%d bytes behind the values: %w", len(rest), orCorrupt(err))
		}
		return nil
	}
	return corrupt("values of form %d", form)
}

func orCorrupt(err error) error {
	if err == nil {
		return ErrCorrupt
	}
	return err
}
