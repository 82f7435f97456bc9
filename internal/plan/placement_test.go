package plan

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/test/require"
)

func identity(id uint64) (uint64, error) { return id, nil }

// TestNewPlacementFindsEveryOwner checks that every parameter is found with its owner, and no other
// key, after a turn through the file.
func TestNewPlacementFindsEveryOwner(t *testing.T) {
	spread := func(id uint64) (uint64, error) { return dataset.Spread(id), nil }
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 300).Draw(t, "k")
		// Stretches of consecutive ids, some of them with one owner.
		owner := map[uint64]int32{}
		id := uint64(0)
		for range rapid.IntRange(1, 8).Draw(t, "stretches") {
			id += rapid.OneOf(rapid.Uint64Range(1, 9), rapid.Uint64Range(1, 1<<56)).Draw(t, "gap")
			one := rapid.Bool().Draw(t, "one owner")
			first := rapid.Int32Range(0, int32(k-1)).Draw(t, "owner")
			for i := range rapid.Int32Range(1, 700).Draw(t, "length") {
				owner[id] = first
				if !one {
					owner[id] = (first + i) % int32(k)
				}
				id++
			}
		}
		var ids []uint64
		var owners []int32
		for id, machine := range owner {
			ids, owners = append(ids, id), append(owners, machine)
		}
		key := identity
		if rapid.Bool().Draw(t, "spread") {
			key = spread
		}
		made := require.Value(NewPlacement(owners, func(p int) uint64 { return ids[p] }, k, key))(t)
		var file bytes.Buffer
		require.NoError(t, WritePlacement(&file, made))
		p := require.Value(ReadPlacement(&file))(t)
		if !reflect.DeepEqual(p, made) {
			t.Fatal("the placement changed in the file")
		}
		if p.Len() != uint64(len(owner)) {
			t.Fatalf("%d keys, want %d", p.Len(), len(owner))
		}
		for id, machine := range owner {
			wire, _ := key(id)
			if got, ok := p.Owner(wire); !ok || got != int(machine) {
				t.Fatalf("key %d: got %d, %v, want %d", wire, got, ok, machine)
			}
		}
		strangers := rapid.SliceOfN(rapid.Uint64(), 0, 9).Draw(t, "strangers")
		for _, id := range strangers {
			if _, known := owner[id]; known {
				continue
			}
			wire, _ := key(id)
			if _, ok := p.Owner(wire); ok {
				t.Fatalf("key %d has an owner, but no sample uses it", wire)
			}
		}
	})
}

func TestRanges(t *testing.T) {
	owners := make([]int32, 100_000)
	for p := 50_000; p < len(owners); p++ {
		owners[p] = 1
	}
	p := require.Value(NewPlacement(owners, func(p int) uint64 { return uint64(p) }, 2, identity))(t)
	want := []PlacedRun{{First: 0, Last: 49_999, Owners: []int32{0}}, {First: 50_000, Last: 99_999, Owners: []int32{1}}}
	if !reflect.DeepEqual(p.Runs, want) {
		t.Errorf("got %+v, want %+v", p.Runs, want)
	}
}

func TestFileForm(t *testing.T) {
	p := &Placement{K: 2, Algorithm: "best", Server: []int{1, 0}, Runs: []PlacedRun{
		{First: 0, Last: 999, Owners: []int32{1}},
		{First: 2000, Last: 2300, Keys: []uint64{2000, 2001, 2300}, Owners: []int32{0, 1, 0}},
	}}
	path := filepath.Join(t.TempDir(), "placement.json")
	require.NoError(t, WritePlacementFile(path, p))
	text := require.Value(os.ReadFile(path))(t)
	const want = `{"version":1,"epoch":0,"k":2,"algorithm":"best","servers":[1,0],"runs":[
{"first":0,"last":999,"owner":1},
{"first":2000,"last":2300,"count":3,"gaps":"AKoC","owners":"AAEA"}
]}
`
	if string(text) != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	again, err := ReadPlacementFile(path)
	if err != nil || !reflect.DeepEqual(again, p) {
		t.Errorf("read back %+v, %v", again, err)
	}
}

func TestBadFiles(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"empty", ``, "EOF"},
		{"no json", `hello`, "invalid character"},
		{"other version", `{"version":2,"k":1,"servers":[0],"runs":[]}`, "version 2, want 1"},
		{"no machines", `{"version":1,"k":0,"servers":[],"runs":[]}`, "k = 0"},
		{"ranks missing", `{"version":1,"k":2,"servers":[0],"runs":[]}`, "1 server ranks for k = 2"},
		{"rank twice", `{"version":1,"k":2,"servers":[1,1],"runs":[]}`, "machine 1 has server rank 1"},
		{"owner beyond k", `{"version":1,"k":1,"servers":[0],"runs":[{"first":1,"last":2,"owner":1}]}`, "run 0 of keys: owner 1: only machines 0..0"},
		{"owner below 0", `{"version":1,"k":1,"servers":[0],"runs":[{"first":1,"last":2,"owner":-1}]}`, "owner -1"},
		{"range backwards", `{"version":1,"k":1,"servers":[0],"runs":[{"first":2,"last":1,"owner":0}]}`, "ends with key 1 before"},
		{"overlap", `{"version":1,"k":1,"servers":[0],"runs":[{"first":1,"last":5,"owner":0},{"first":5,"last":6,"owner":0}]}`, "run 1 of keys: starts with key 5, but the run before ends with 5"},
		{"last key", `{"version":1,"k":1,"servers":[0],"runs":[{"first":1,"last":18446744073709551615,"owner":0}]}`, "beyond PS-lite's last key"},
		{"no owners", `{"version":1,"k":1,"servers":[0],"runs":[{"first":1,"last":5,"count":9}]}`, `"count" is 9, but "owners" has 0 bytes`},
		{"both forms", `{"version":1,"k":1,"servers":[0],"runs":[{"first":1,"last":5,"owner":0,"count":9}]}`, "want one of them"},
		{"gaps end", `{"version":1,"k":2,"servers":[1,0],"runs":[{"first":2000,"last":2300,"count":3,"gaps":"AA==","owners":"AAEA"}]}`, `"gaps" ends or overflows after 2 keys of 3`},
		{"gaps go on", `{"version":1,"k":2,"servers":[1,0],"runs":[{"first":2000,"last":2001,"count":2,"gaps":"AAA=","owners":"AAE="}]}`, "go on after 2 keys"},
		{"last differs", `{"version":1,"k":2,"servers":[1,0],"runs":[{"first":2000,"last":2009,"count":2,"gaps":"AA==","owners":"AAE="}]}`, "do not go from 2000 to 2009"},
		{"no base64", `{"version":1,"k":2,"servers":[1,0],"runs":[{"first":1,"last":2,"count":2,"gaps":"!","owners":"AAE="}]}`, "base64"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := ReadPlacement(strings.NewReader(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"version":1,"epoch":0,"k":2,"servers":[1,0],"runs":[{"first":0,"last":999,"owner":1},{"first":2000,"last":2300,"count":3,"gaps":"AKoC","owners":"AAEA"}]}`))
	f.Add([]byte(`{"version":1,"k":1,"servers":[0],"runs":[{"first":1,"last":1,"count":1,"owners":"AA=="}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ReadPlacement(bytes.NewReader(text))
		if err != nil {
			return
		}
		var out bytes.Buffer
		require.NoError(t, WritePlacement(&out, p))
		again, err := ReadPlacement(&out)
		if err != nil || again.Len() != p.Len() || len(again.Runs) != len(p.Runs) {
			t.Fatalf("read back %+v, %v, want %+v", again, err, p)
		}
		for i := range p.Runs {
			for _, key := range []uint64{p.Runs[i].First, p.Runs[i].Last, p.Runs[i].Last + 1} {
				a, okA := p.Owner(key)
				b, okB := again.Owner(key)
				if a != b || okA != okB || okA && (a < 0 || a >= p.K) {
					t.Fatalf("key %d: owner %d %v, read back %d %v", key, a, okA, b, okB)
				}
			}
		}
	})
}
