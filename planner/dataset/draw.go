package dataset

import (
	"math"

	"github.com/psidecar/psidecar/internal/splitmix"
)

// pick draws the sample of one bin by the hash function with that key. For OPH it is the feature
// with the least position; with the key of the permutation the positions are known already.
func (h *Hasher) pick(bin int, key uint64) sample {
	if h.options.Scheme == BCWS {
		return h.pickWeighted(bin, key)
	}
	best, least := h.first[bin], uint64(math.MaxUint64)
	for i := h.first[bin]; i >= 0; i = h.next[i] {
		place := h.hash[i]
		if key != h.key.permutation {
			place = splitmix.Next(h.ids[i] ^ key)
		}
		if place < least || place == least && h.ids[i] < h.ids[best] {
			best, least = i, place
		}
	}
	return sample{id: h.ids[best]}
}

// pickWeighted is Ioffe's improved consistent weighted sampling (ICDM 2010)
// within a bin: per feature, r and c of Gamma(2, 1) and beta of U(0, 1), all
// hashed from the feature; t = floor(ln S / r + beta), ln y = r (t - beta),
// ln a = ln c - ln y - r; the feature of the least a is drawn, with its t.
func (h *Hasher) pickWeighted(bin int, key uint64) sample {
	var best sample
	least := math.Inf(1)
	for i := h.first[bin]; i >= 0; i = h.next[i] {
		u := splitmix.Next(h.ids[i] ^ key)
		r := -math.Log(unit(splitmix.Next(u+1)) * unit(splitmix.Next(u+2)))
		c := -math.Log(unit(splitmix.Next(u+3)) * unit(splitmix.Next(u+4)))
		beta := unit(splitmix.Next(u + 5))
		t := math.Floor(h.log[i]/r + beta)
		a := math.Log(c) - r*(t-beta) - r
		if a < least || a == least && h.ids[i] < best.id {
			best, least = sample{id: h.ids[i], level: int64(t)}, a
		}
	}
	return best
}

// hashKeys are the keys of the hash functions, all drawn from one seed.
type hashKeys struct {
	permutation uint64 // of the one permutation
	redrawing   uint64 // of the hash functions of empty bins
	ordering    uint64 // of the order of donors, per empty bin
	rank        uint64 // of the second part of that order
	code        uint64 // of the samples' codes
}

func newHashKeys(seed uint64) hashKeys {
	draw := func() uint64 { seed += splitmix.Golden; return splitmix.Next(seed) }
	return hashKeys{draw(), draw(), draw(), draw(), draw()}
}

// redraw returns the key of the hash function of an empty bin, order that of its order of donors.
func (k *hashKeys) redraw(bin int) uint64 { return splitmix.Next(k.redrawing + uint64(bin)) }
func (k *hashKeys) order(bin int) uint64  { return splitmix.Next(k.ordering + uint64(bin)) }

// unit maps a hash to (0, 1].
func unit(hash uint64) float64 { return float64(hash>>11+1) / (1 << 53) }
