package counts

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

// uses is how many uses TestTopOfABillion makes; PSIDECAR_USES says another number.
const uses = 600_000

// Of a billion keys that are used as unequally as words are, nearly all of which come
// once, the thousand most used ones are found, and their counts are right to 1%, in
// the memory that is set. Hashed keys have no neighbours, dense ones are neighbours of
// such as are used as much.
func TestTopOfABillion(t *testing.T) {
	n, memory := uses, 1<<20
	if text := os.Getenv("PSIDECAR_USES"); text != "" {
		many, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		n, memory = int(many), DefaultOptions.MemoryBytes
	}
	for name, key := range map[string]func(uint64) uint64{"hashed": mix, "dense": func(rank uint64) uint64 { return rank }} {
		t.Run(name, func(t *testing.T) {
			o := Options{MemoryBytes: memory, SketchBytes: max(memory/4, 1<<20)}
			table, exact := New(o), make([]uint64, 1<<16) // by rank: the most used ones are among the first
			zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.05, 1, 1e9-1)
			keys := make([]uint64, 0, 4096)
			for done := 0; done < n; done += len(keys) {
				for keys = keys[:0]; len(keys) < cap(keys); {
					rank := zipf.Uint64()
					if rank < uint64(len(exact)) {
						exact[rank]++
					}
					keys = append(keys, key(rank))
				}
				slices.Sort(keys)
				table.Add(Batch{Keys: keys, Each: Sums{Pulls: 1}})
			}
			if size := table.Size(); size.MemoryBytes > o.MemoryBytes+o.SketchBytes+o.MemoryBytes/4 || size.FoldedBlocks == 0 && n == uses {
				t.Fatalf("%d bytes for %d keys, %d blocks folded", size.MemoryBytes, size.Keys, size.FoldedBlocks)
			}
			const top = 1000
			got, _ := table.Hottest(top)
			counts := map[uint64]uint64{}
			for _, k := range got {
				counts[k.Key] = k.Accesses()
			}
			order := make([]int, len(exact))
			for i := range order {
				order[i] = i
			}
			slices.SortFunc(order, func(a, b int) int { return int(exact[b]) - int(exact[a]) })
			missing, wrong, worst, bar := 0, 0, 0.0, exact[order[top-1]]
			for _, rank := range order[:top] {
				count, found := counts[key(uint64(rank))]
				off := math.Abs(float64(count)/float64(exact[rank]) - 1)
				switch {
				case !found && exact[rank] > bar+bar/100: // those at the bar are as good as others there
					missing++
				case found && off > 0.01:
					wrong++
				}
				if found {
					worst = max(worst, off)
				}
			}
			say := fmt.Sprintf("%d uses of %d keys: of the %d most used %d are missing, %d counted wrong by more than 1%%, at most %.2f%%", n, table.Size().Keys, top, missing, wrong, 100*worst)
			if missing+wrong > top/100 {
				t.Error(say)
			}
			t.Log(say)
		})
	}
}
