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

// root is the content of the root object, as JSON under rootKey. It lists the pages that count. An
// update of the root names the resource version that it replaces, so only the planner that wrote it
// last can add a page.
type root struct {
	object *corev1.ConfigMap // as it was last read or written
	Format int               `json:"format"` // 1
	Term   int64             `json:"term"`   // Lease transitions at the last takeover
	Opened uint64            `json:"opened"` // how often the store was taken over
	Next   uint64            `json:"next"`   // number of the next page; none is used twice
	Pages  []uint64          `json:"pages"`  // others are rubbish of an interrupted write
}

const (
	// rootFormat is the only format that this package reads and writes.
	rootFormat = 1
	rootKey    = "root"
	pageKey    = "entries"
)

// parseRoot decodes the root object. It keeps m, whose resource version the next write needs.
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

// A page is one object with entries. Pages are rewritten as a whole, so they are kept small
// (pageBytes).
type page struct {
	number  uint64
	object  *corev1.ConfigMap // as it was last read or written; nil: there is none yet
	entries map[string]record
	size    int // bytes of all of them, encoded
}

// A record is the value of an entry and the sequence number of its write. An interrupted write may
// leave an entry on two pages; the record with the higher number is the newer one.
type record struct {
	sequence uint64
	value    []byte
}

// sizeOf returns an upper bound on the bytes that an entry takes in a page: three numbers, the name
// and the value.
func sizeOf(name string, value []byte) int {
	return 3*binary.MaxVarintLen64 + len(name) + len(value)
}

// appendEntries appends the encoded entries of a page to b, in the order of their names:
//
//	sequence number   uvarint
//	length of name    uvarint
//	name
//	length of value   uvarint
//	value
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

// parseEntries is the inverse of appendEntries. The values share b's memory. It checks every length
// against b and the package's bounds, since people can edit ConfigMaps.
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

// parsePage decodes the object of a page and keeps it for its resource version.
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
