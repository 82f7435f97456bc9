package shared

import (
	"bufio"
	"encoding/binary"
	"io"
	"math/bits"

	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/codec/planes"
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
	planes planes.Decoder
	tables [maxTables]*table
	fresh  []byte
	// keysOf returns the keys of a request that is not answered yet, which do not change.
	keysOf KeysOf
}

// A KeysOf returns the keys of a request of a link, as the body of a keys frame; nil if it is not
// known.
type KeysOf func(link, request uint64) []byte

// read reads the sender's frames until the lane ends. It waits for nothing but the lane, so
// that no link can hold up another.
func (s *Store) read(r *bufio.Reader, keysOf KeysOf) error {
	l := laneReader{store: s, r: r, keysOf: keysOf}
	defer l.forgetTables()
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
		case kindTable:
			err = l.readTable(n)
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
		if len(numbers) > l.store.most/Fewest+1 {
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
		if onLane >= size && (form != ByKey || onLane-size > byKeyHead) {
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
	if form == ByKey {
		err = l.fill(values)
	} else {
		err = l.unpack(form, values, l.packed)
	}
	if err != nil {
		return err
	}
	l.store.add(number, values, int(onLane))
	return nil
}

// readTable reads a new table, or that one is not needed any more.
func (l *laneReader) readTable(id uint64) error {
	width, err := readNumber(l.r)
	if err != nil {
		return err
	}
	if id >= maxTables || width > maxWidth {
		return corrupt("table %d of values of %d bytes", id, width)
	}
	before := 0
	if l.tables[id] != nil {
		before = l.tables[id].size()
	}
	if width == 0 {
		l.tables[id] = nil
		return l.store.resize(before, 0)
	}
	setBits, err := readNumber(l.r)
	if err != nil {
		return err
	}
	if setBits < 1 || setBits > maxSetBits {
		return corrupt("a table of 2^%d sets", setBits)
	}
	if err := l.store.resize(before, tableSize(int(width), int(setBits))); err != nil {
		return err
	}
	l.tables[id] = newTable(int(width), int(setBits))
	return nil
}

// forgetTables is for the end of the lane: the next one has its own.
func (l *laneReader) forgetTables() {
	for _, t := range l.tables {
		if t != nil {
			_ = l.store.resize(t.size(), 0) // less always fits
		}
	}
}

// fill fills values with what went by key, of which l.packed has those that this end lacks.
func (l *laneReader) fill(values []byte) error {
	var n [3]uint64
	src := l.packed
	for i := range n {
		v, size := binary.Uvarint(src)
		if size <= 0 {
			return corrupt("an answer by key of %d bytes", len(l.packed))
		}
		n[i], src = v, src[size:]
	}
	if n[0] >= maxTables || l.tables[n[0]] == nil || len(src) == 0 {
		return corrupt("an answer by key of table %d, %d bytes", n[0], len(src))
	}
	t, keys := l.tables[n[0]], l.keysOf(n[1], n[2])
	count := len(keys) / 8
	if count == 0 || count*t.width != len(values) {
		return corrupt("%d bytes of values for the %d keys of request %d of link %d, of %d bytes each", len(values), count, n[2], n[1], t.width)
	}
	form, src := src[0], src[1:]
	var known []byte
	lacks := count
	if form&someKnown != 0 {
		form &^= someKnown
		size := (count + 7) / 8
		if len(src) < size {
			return corrupt("%d bytes of bits for %d keys", len(src), count)
		}
		known, src = src[:size], src[size:]
		for i, b := range known {
			if i == size-1 {
				b &= 0xff >> (8*size - count) // others are of no key
			}
			lacks -= bits.OnesCount8(b)
		}
	} else {
		known = make([]byte, (count+7)/8)
	}
	fresh := src
	if form != Plain {
		if cap(l.fresh) < lacks*t.width {
			l.fresh = make([]byte, lacks*t.width)
		}
		fresh = l.fresh[:lacks*t.width]
		if err := l.unpack(form, fresh, src); err != nil {
			return err
		}
	}
	if len(fresh) != lacks*t.width {
		return corrupt("%d bytes for %d values of %d", len(fresh), lacks, t.width)
	}
	return t.fill(values, known, fresh, keys)
}

// unpack fills values with what packed stands for.
func (l *laneReader) unpack(form byte, values, packed []byte) error {
	switch form {
	case Words:
		words, rest, err := l.words.Decode(packed)
		if err != nil || len(rest) > 0 || copy(values, words) != len(values) || len(words) != len(values) {
			return corrupt("%d bytes of words for %d of values, %d left: %w", len(packed), len(values), len(rest), orCorrupt(err))
		}
		return nil
	case Sparse:
		return fillAll(&l.sparse, values, packed)
	case Planes:
		return fillAll(&l.planes, values, packed)
	}
	return corrupt("values of form %d", form)
}

// fillAll fills values with what a decoder makes of packed.
func fillAll(d interface {
	Open(src []byte, most int) (size int, err error)
	Fill(out []byte) (rest []byte, err error)
}, values, packed []byte) error {
	size, err := d.Open(packed, len(values))
	if err != nil || size != len(values) {
		return corrupt("%d bytes for %d of values: %w", size, len(values), orCorrupt(err))
	}
	rest, err := d.Fill(values)
	if err != nil || len(rest) > 0 {
		return corrupt("%d bytes behind the values: %w", len(rest), orCorrupt(err))
	}
	return nil
}

func orCorrupt(err error) error {
	if err == nil {
		return ErrCorrupt
	}
	return err
}
