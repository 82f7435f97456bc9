package stream

import (
	"math"
	"math/rand/v2"
)

// baselineSeeds is the number of random partitions that are averaged.
const baselineSeeds = 5

// A baseline measures random partitions while the rows go by: on all features as long as they fit,
// and from then on on an even sample of them, those whose hash is below a limit (Gibbons, Distinct
// sampling, VLDB 2001).
type baseline struct {
	k, words int // words of a set of machines
	table    *table
	// Features with a larger hash are not in the sample.
	limit  uint64
	random [baselineSeeds]*rand.Rand
	// Each k consecutive samples go to the k machines in a random order.
	turn [baselineSeeds][]int32
	row  int
}

// newBaseline returns a baseline whose table takes up to memory bytes. Its seeds are fixed, so that
// runs can be compared.
func newBaseline(k int, memory int64) *baseline {
	words := SetWords(k)
	b := &baseline{k: k, words: words, limit: 1<<64 - 1}
	b.table = newTable(memory/slotBytes(words*baselineSeeds, 0), words*baselineSeeds, 0)
	for i := range b.random {
		b.random[i] = rand.New(rand.NewPCG(uint64(i)+1, 0))
		b.turn[i] = make([]int32, k)
		for machine := range b.turn[i] {
			b.turn[i][machine] = int32(machine)
		}
	}
	return b
}

// sampleHash is another hash than the table's: a sample of the low hashes of the table would crowd
// its first slots.
func sampleHash(id uint64) uint64 { return hash(id ^ 0x9e3779b97f4a7c15) }

// addSample assigns a sample at random, once for each seed, and records it with its features. If
// the table is full the sample of features shrinks by a quarter.
func (b *baseline) addSample(ids []uint64) {
	at := b.row % b.k
	b.row++
	if at == 0 {
		for i, r := range b.random {
			turn := b.turn[i]
			r.Shuffle(b.k, func(x, y int) { turn[x], turn[y] = turn[y], turn[x] })
		}
	}
	for _, id := range ids {
		if sampleHash(id) > b.limit {
			continue
		}
		for b.table.full() {
			b.limit -= b.limit / 4
			b.table.retainFeatures(func(s int) bool { return sampleHash(b.table.ids[s]-1) <= b.limit })
		}
		if sampleHash(id) > b.limit {
			continue
		}
		sets := b.table.wordsOf(b.table.add(id))
		for i := range b.turn {
			machine := b.turn[i][at]
			sets[i*b.words+int(machine>>6)] |= 1 << (machine & 63)
		}
	}
}

// share returns the fraction of the features that are in the sample.
func (b *baseline) share() float64 {
	if b.limit == 1<<64-1 {
		return 1
	}
	return float64(b.limit) / (1 << 64)
}

// traffic returns the traffic of the busiest machine and the total, averaged over the seeds, with
// random owners. What a sample shows is scaled to all params: the total in proportion, and the
// excess of the busiest machine over the mean, which is chance, with the square root.
func (b *baseline) traffic(params int64) (most, total float64) {
	if b.table.used == 0 {
		return 0, 0
	}
	scale := float64(params) / float64(b.table.used)
	load := make([]int64, b.k)
	for i := range b.random {
		clear(load)
		for s, id := range b.table.ids {
			if id == 0 {
				continue
			}
			owner := int(hash(id+uint64(i)<<32) % uint64(b.k))
			users := b.table.wordsOf(s)[i*b.words : (i+1)*b.words]
			for each := range Members(users) {
				if each != owner {
					load[each]++
					load[owner]++
				}
			}
		}
		var sum, busiest int64
		for _, l := range load {
			sum += l
			busiest = max(busiest, l)
		}
		mean := float64(sum) / float64(b.k)
		most += (mean*scale + (float64(busiest)-mean)*math.Sqrt(scale)) / baselineSeeds
		total += float64(sum) / 2 * scale / baselineSeeds
	}
	return most, total
}
