package dataset

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/psidecar/psidecar/internal/splitmix"
)

// A KeyMap maps the feature ids of a job's files to the keys that it uses on the wire. It maps no
// two ids to one key, and none to 2^64-1, which is beyond PS-lite's last key. The zero value is the
// identity.
type KeyMap struct {
	spread bool
	// If not nil, only these ids have keys.
	listed map[uint64]uint64
	from   string // the file of listed
}

// ParseKeyMap parses "identity", by which the id is the key, "spread" (see [Spread]), or
// "file:PATH", which names a text with an id and its key on each line. "" means identity.
func ParseKeyMap(text string) (KeyMap, error) {
	path, isFile := strings.CutPrefix(text, "file:")
	switch {
	case text == "" || text == "identity":
		return KeyMap{}, nil
	case text == "spread":
		return KeyMap{spread: true}, nil
	case isFile:
		return readKeyMap(path)
	}
	return KeyMap{}, fmt.Errorf("key map %q: use identity, spread or file:PATH", text)
}

// Key returns the key of id, or an error if a key map file does not list it.
func (m *KeyMap) Key(id uint64) (uint64, error) {
	switch {
	case m.spread:
		return Spread(id), nil
	case m.listed == nil:
		return id, nil
	}
	key, ok := m.listed[id]
	if !ok {
		return 0, fmt.Errorf("feature id %d has no key in %s: add a line %q", id, m.from, fmt.Sprintf("%d KEY", id))
	}
	return key, nil
}

// Spread maps a feature id, at most [MaxID], to a key anywhere in PS-lite's key space [0, 2^64-1).
// PS-lite gives each server an equal range of that space, so small ids would all belong to the
// first server; spread keys fall on all servers alike, whatever the pattern of the ids.
func Spread(id uint64) uint64 {
	if key := splitmix.Next(id); key != math.MaxUint64 {
		return key
	}
	// Next is a bijection, and this is the image of an id above MaxID, so it is free.
	return splitmix.Next(math.MaxUint64)
}

// readKeyMap reads the lines of a key map file: an id, its key, and perhaps a comment after #. Both
// must be unique, since two ids with one key would share a parameter.
func readKeyMap(path string) (KeyMap, error) {
	f, err := os.Open(path)
	if err != nil {
		return KeyMap{}, fmt.Errorf("opening the key map: %w", err)
	}
	defer f.Close()
	m := KeyMap{listed: map[uint64]uint64{}, from: path}
	// Used only to find keys that are listed twice.
	owner := map[uint64]uint64{} // key -> id
	lines := bufio.NewScanner(f)
	for line := 1; lines.Scan(); line++ {
		text, _, _ := bytes.Cut(lines.Bytes(), []byte{'#'})
		fields := bytes.Fields(text)
		if len(fields) == 0 {
			continue
		}
		id, key, err := parsePair(fields)
		if err == nil {
			if other, taken := owner[key]; taken {
				err = fmt.Errorf("key %d already belongs to feature id %d", key, other)
			} else if _, twice := m.listed[id]; twice {
				err = fmt.Errorf("duplicate feature id %d", id)
			}
		}
		if err != nil {
			return KeyMap{}, &LineError{File: path, Line: line, Err: err}
		}
		m.listed[id], owner[key] = key, id
	}
	if err := lines.Err(); err != nil {
		return KeyMap{}, fmt.Errorf("reading the key map %s: %w", path, err)
	}
	return m, nil
}

// parsePair parses an id and its key, each within its range.
func parsePair(fields [][]byte) (id, key uint64, err error) {
	if len(fields) != 2 {
		return 0, 0, fmt.Errorf("want a feature id and its key, got %d words", len(fields))
	}
	if id, err = strconv.ParseUint(string(fields[0]), 10, 64); err != nil || id > MaxID {
		return 0, 0, fmt.Errorf("feature id %q: want a whole number up to 2^63", fields[0])
	}
	if key, err = strconv.ParseUint(string(fields[1]), 10, 64); err != nil || key == math.MaxUint64 {
		return 0, 0, fmt.Errorf("key %q: want a whole number below 2^64-1", fields[1])
	}
	return id, key, nil
}
