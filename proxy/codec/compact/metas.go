package compact

import (
	"encoding/binary"
	"fmt"
)

// metas writes metas as what differs from one before it. Metas of one size are most likely
// of one kind of message, so for each size modulo 16 the last is kept at both ends, up to
// longestMeta bytes. An encoded meta is uvarint 2*length and the bytes, or uvarint
// 2*length+1, uvarint number of differences, and for each the number of bytes skipped and
// the new byte.
type metas struct {
	last [16][]byte
}

// longestMeta is the size of the largest meta that is kept to compare with.
const longestMeta = 1024

func (m *metas) slot(size int) *[]byte { return &m.last[size%len(m.last)] }

func (m *metas) keep(meta []byte) {
	if len(meta) <= longestMeta {
		last := m.slot(len(meta))
		*last = append((*last)[:0], meta...)
	}
}

// append appends a meta in the shorter of both forms.
func (m *metas) append(dst, meta []byte) []byte {
	// Kept whichever way it goes: the receiver keeps it, too.
	defer m.keep(meta)
	start := len(dst)
	if last := *m.slot(len(meta)); len(last) == len(meta) {
		dst = binary.AppendUvarint(dst, uint64(len(meta))*2+1)
		dst = appendDifferences(dst, last, meta)
		if len(dst)-start <= len(meta) {
			return dst
		}
		dst = dst[:start]
	}
	dst = binary.AppendUvarint(dst, uint64(len(meta))*2)
	return append(dst, meta...)
}

// appendDifferences appends where meta differs from last, which is as long.
func appendDifferences(dst, last, meta []byte) []byte {
	n := 0
	for i := range meta {
		if meta[i] != last[i] {
			n++
		}
	}
	dst = binary.AppendUvarint(dst, uint64(n))
	next := 0
	for i := range meta {
		if meta[i] != last[i] {
			dst = binary.AppendUvarint(dst, uint64(i-next))
			dst = append(dst, meta[i])
			next = i + 1
		}
	}
	return dst
}

// readMeta reads a meta into room and returns it and what follows it in src.
func (m *metas) readMeta(src, room []byte) (meta, rest []byte, err error) {
	size, src, err := uvarint(src)
	if err != nil {
		return nil, nil, err
	}
	// The lowest bit says which of the two forms follows.
	isDifferent := size&1 == 1
	size /= 2
	if !isDifferent {
		if size > uint64(len(src)) {
			return nil, nil, fmt.Errorf("%w: a meta of %d bytes in %d", ErrCorrupt, size, len(src))
		}
		meta = append(room[:0], src[:size]...)
		m.keep(meta)
		return meta, src[size:], nil
	}
	if size > longestMeta || len(*m.slot(int(size))) != int(size) {
		return nil, nil, fmt.Errorf("%w: a meta like one of %d bytes, which was not seen", ErrCorrupt, size)
	}
	meta = append(room[:0], *m.slot(int(size))...)
	if src, err = readDifferences(src, meta); err != nil {
		return nil, nil, err
	}
	m.keep(meta)
	return meta, src, nil
}

// readDifferences applies differences to meta and returns what follows them.
func readDifferences(src, meta []byte) ([]byte, error) {
	n, src, err := uvarint(src)
	if err != nil {
		return nil, err
	}
	at := uint64(0)
	for range n {
		var skip uint64
		if skip, src, err = uvarint(src); err != nil {
			return nil, err
		}
		if skip >= uint64(len(meta)) || at+skip >= uint64(len(meta)) || len(src) == 0 {
			return nil, fmt.Errorf("%w: a difference beyond the meta", ErrCorrupt)
		}
		meta[at+skip] = src[0]
		at += skip + 1
		src = src[1:]
	}
	return src, nil
}

func uvarint(src []byte) (uint64, []byte, error) {
	v, n := binary.Uvarint(src)
	if n <= 0 {
		return 0, nil, fmt.Errorf("%w: it ends within a number, or the number is too large", ErrCorrupt)
	}
	return v, src[n:], nil
}
