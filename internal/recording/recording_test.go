package recording

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

func drawUses(t *rapid.T) []Use {
	lists := [][]uint64{{1, 2, 3}, {}, {7}, {1 << 63, 5, 1<<64 - 1}, {10, 20, 30, 40, 50}}
	uses := make([]Use, rapid.IntRange(0, 60).Draw(t, "uses"))
	for i := range uses {
		u := Use{
			Job: rapid.SampledFrom([]string{"a:1", "b:2"}).Draw(t, "job"), Worker: rapid.SampledFrom([]string{"worker0", "worker1"}).Draw(t, "worker"),
			Server: "server0", UnixNanos: rapid.Int64().Draw(t, "time") >> 2, App: rapid.Int32().Draw(t, "app"),
			Customer: int32(i), Timestamp: rapid.Int32().Draw(t, "timestamp"), Push: rapid.Bool().Draw(t, "push"),
			OneIn: rapid.Uint32Range(1, 3).Draw(t, "one in"), Pull: rapid.Bool().Draw(t, "pull"), Answer: rapid.Bool().Draw(t, "answer"), Bytes: rapid.Uint64Range(0, 1<<50).Draw(t, "bytes"),
		}
		u.Keys = rapid.SampledFrom(lists).Draw(t, "keys")
		if rapid.Bool().Draw(t, "lens") && len(u.Keys) > 0 {
			u.Lens = make([]int32, len(u.Keys))
			for k := range u.Lens {
				u.Lens[k] = rapid.Int32().Draw(t, "len")
			}
		}
		uses[i] = u
	}
	return uses
}

func write(t require.TB, uses []Use) []byte {
	var file bytes.Buffer
	w := require.Value(NewWriter(&file, Header{Host: "h"}))(t)
	for i := range uses {
		require.NoError(t, w.Add(&uses[i]))
	}
	require.Value(w.Close(9, 3))(t)
	return file.Bytes()
}

func read(file []byte) (uses []Use, header Header, totals Totals, err error) {
	header, totals, err = Read(bytes.NewReader(file), func(u *Use) error {
		c := *u
		c.Lens = append([]int32(nil), u.Lens...)
		uses = append(uses, c)
		return nil
	})
	return uses, header, totals, err
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawUses(t)
		got, header, totals, err := read(write(t, want))
		if err != nil || header.Host != "h" || totals.Dropped != 3 || totals.Uses != uint64(len(want)) {
			t.Fatalf("%v, %+v, %+v", err, header, totals)
		}
		for i := range want {
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Fatalf("use %d: %+v, want %+v", i, got[i], want[i])
			}
		}
	})
}

// Whatever byte of a recording is damaged, or wherever it is cut off, reading
// it ends with an error.
func TestDamageAnywhereIsAnError(t *testing.T) {
	uses := make([]Use, 50)
	for i := range uses {
		uses[i] = Use{Job: "a:1", Worker: "worker0", Server: "server0", UnixNanos: int64(i), Timestamp: int32(i), Push: true, Keys: []uint64{uint64(i), uint64(i * i * 1000)}, Bytes: 8}
	}
	file := write(t, uses)
	for cut := range len(file) {
		if _, _, _, err := read(file[:cut]); err == nil {
			t.Fatalf("cut off at byte %d of %d, and nothing was said", cut, len(file))
		}
	}
	for at := range file {
		damaged := bytes.Clone(file)
		damaged[at] ^= 0x10
		if got, _, _, err := read(damaged); err == nil && !sameUses(got, uses) {
			t.Fatalf("byte %d was changed, and nothing was said", at)
		}
	}
	if _, _, _, err := read([]byte("GIF89a..")); err == nil {
		t.Error("a file that is no recording was read")
	}
}

func sameUses(a, b []Use) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Timestamp != b[i].Timestamp || a[i].Bytes != b[i].Bytes || !reflect.DeepEqual(a[i].Keys, b[i].Keys) {
			return false
		}
	}
	return true
}

// Lists of more keys than a writer leaves at a time are refused before they take memory;
// a writer that begins anew may go on.
func TestKeysOfAllListsAreBounded(t *testing.T) {
	const half = maxListKeys/2 + 1
	list := append(binary.AppendUvarint(nil, half), make([]byte, half)...) // key 0, again and again
	for _, forgets := range []bool{false, true} {
		var file bytes.Buffer
		w, err := NewWriter(&file, Header{Host: "h"})
		require.NoError(t, err)
		for range 2 {
			w.writeEntry('K', list)
			w.totals.Lists++
			if forgets {
				w.writeEntry('F', nil)
			}
		}
		require.Value(w.Close(9, 0))(t)
		_, _, _, err = read(file.Bytes())
		if refused := err != nil && strings.Contains(err.Error(), "more of them than a writer leaves"); refused == forgets || forgets && err != nil {
			t.Errorf("the writer forgets its lists: %v; read with %v", forgets, err)
		}
	}
}

func TestCutOff(t *testing.T) {
	var file bytes.Buffer
	w := require.Value(NewWriter(&file, Header{}))(t)
	require.NoError(t, errors.Join(w.Add(&Use{Job: "a:1", Worker: "w", Server: "s", Keys: []uint64{1}}), w.Flush()))
	uses, _, _, err := read(file.Bytes())
	if !errors.Is(err, ErrCutOff) || len(uses) != 1 {
		t.Errorf("%d uses, %v; want 1 and that it was cut off", len(uses), err)
	}
	if _, err := w.Close(0, 0); err != nil {
		t.Error(err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(write(f, []Use{{Job: "a:1", Worker: "worker0", Server: "server0", Keys: []uint64{1, 2}}}))
	f.Fuzz(func(_ *testing.T, file []byte) {
		_, _, _, err := read(file)
		_ = err // any, but no panic and no end without one
	})
}
