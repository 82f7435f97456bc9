package prerun

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The part of a streamed partition that is said to be done is that of the rows which
// have been read, of all passes, whatever the sizes of the shards: exactly at the end of
// each shard, and in between more only by what of that shard is read ahead.
func TestStreamedProgressIsThePartThatIsRead(t *testing.T) {
	const passes = 4
	dir := t.TempDir()
	var shards []Input
	var ends []int // rows when a shard has been read
	total, said := 0, 0.0
	for i, rows := range []int{20, 100_000, 3_000, 300_000} {
		path := filepath.Join(dir, string(rune('a'+i)))
		if err := os.WriteFile(path, []byte(strings.Repeat("1 2:3 5:7 1000:1\n", rows)), 0o600); err != nil {
			t.Fatal(err)
		}
		total += rows
		ends = append(ends, total)
		shards = append(shards, Input{Path: path, Progress: func(done float64) {
			if done < said {
				t.Errorf("%.3f are done, %.3f were before", done, said)
			}
			said = done
		}})
	}
	source := rowsOf(shards, passes, nil)
	for pass := range passes + 1 {
		read, shard := 0, 0
		part := func(rows int) float64 { return float64(pass*total+rows) / float64((passes+1)*total) }
		if err := source(context.Background(), pass, func([]uint64) (int, error) {
			if read++; read > ends[shard] {
				shard++
			}
			least, most := part(read), part(ends[shard])
			if read == ends[shard] {
				least = most
			}
			if said < least-1e-9 || said > most+1e-9 {
				return 0, fmt.Errorf("pass %d: after %d rows %.5f are said to be done, want %.5f to %.5f", pass, read, said, least, most)
			}
			return 0, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if said != 1 {
		t.Errorf("at the end %.5f are said to be done", said)
	}
	if parts := partsBefore([]Input{{Path: filepath.Join(dir, "missing")}}); parts[0] != 0 || parts[1] != 1 {
		t.Errorf("a file that is missing: %v", parts)
	}
}
