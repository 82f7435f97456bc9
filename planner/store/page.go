package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// root is what the root object says, as JSON under rootKey.
type root struct {
	object *corev1.ConfigMap // as it was last read or written
	Format int               `json:"format"` // 1
	Term   int64             `json:"term"`   // Lease transitions at the last takeover
	Opened uint64            `json:"opened"` // how often the store was taken over
	Next   uint64            `json:"next"`   // number of the next page; none is used twice
	Pages  []uint64          `json:"pages"`  // others are rubbish of an interrupted write
}

const (
	rootFormat = 1
	rootKey    = "root"
	pageKey    = "entries"
)

func parseRoot(m *corev1.ConfigMap) (root, error) {
	r := root{}
	if err := json.Unmarshal([]byte(m.Data[rootKey]), &r); err != nil {
		return r, fmt.Errorf("ConfigMap %s: %w", m.Name, err)
	}
	if r.Format != rootFormat {
		return r, fmt.Errorf("ConfigMap %s has format %d, this psidecar knows %d", m.Name, r.Format, rootFormat)
	}
	r.object = m
	return r, nil
}

// A page is an object with entries.
type page struct {
	number  uint64
	object  *corev1.ConfigMap // as it was last read or written; nil: there is none yet
	entries map[string]record
	size    int // bytes of all of them, encoded
}

// A record is an entry's value. Of two records of an entry, which an
// interrupted write may leave, that with the higher number is true.
type record struct {
	sequence uint64
	value    []byte
}

// sizeOf bounds what an entry takes in a page: three numbers, name, value.
func sizeOf(name string, value []byte) int {
	return 3*binary.MaxVarintLen64 + len(name) + len(value)
}

// appendEntries encodes: for each entry its sequence number, the length of its
// name, the name, the length of its value, the value.
func appendEntries(b []byte, entries map[string]record) []byte {
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		r := entries[name]
		b = binary.AppendUvarint(b, r.sequence)
		b = binary.AppendUvarint(b, uint64(len(name)))
		b = append(b, name...)
		b = binary.AppendUvarint(b, uint64(len(r.value)))
		b = append(b, r.value...)
	}
	return b
}

var errDamaged = errors.New("its entries are damaged")

// parseEntries is the inverse. The records keep b.
func parseEntries(b []byte) (map[string]record, error) {
	entries := map[string]record{}
	number := func() (uint64, bool) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, false
		}
		b = b[n:]
		return v, true
	}
	text := func(most uint64) ([]byte, bool) {
		n, ok := number()
		if !ok || n > uint64(len(b)) || n > most {
			return nil, false
		}
		t := b[:n:n]
		b = b[n:]
		return t, true
	}
	for len(b) > 0 {
		sequence, ok := number()
		if !ok {
			return nil, errDamaged
		}
		name, ok := text(MaxName)
		if !ok || len(name) == 0 {
			return nil, errDamaged
		}
		value, ok := text(MaxValue)
		if !ok {
			return nil, errDamaged
		}
		if _, twice := entries[string(name)]; twice {
			return nil, errDamaged
		}
		entries[string(name)] = record{sequence, value}
	}
	return entries, nil
}

func parsePage(number uint64, m *corev1.ConfigMap) (*page, error) {
	entries, err := parseEntries(m.BinaryData[pageKey])
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s: %w", m.Name, err)
	}
	p := &page{number: number, object: m, entries: entries}
	for name, r := range entries {
		p.size += sizeOf(name, r.value)
	}
	return p, nil
}
