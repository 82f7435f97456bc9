package translate

import (
	"slices"

	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/planner/dataset"
)

// Sentences holds pairs of a source sentence and its translation. Words are numbers
// from 1 to the vocabulary's size - 1; 0 is the mark before and behind a translation.
// A source word's feature id is 1 + the word; a target word's is that plus the size
// of the vocabulary.
type Sentences struct {
	sparse     *model.Sparse // the source's words, the mark, the target's words
	pairs      []Sentence
	vocabulary int
	columns    []int32 // by target word; -1: no sentence has it
}

// Len returns the number of pairs.
func (s *Sentences) Len() int { return len(s.pairs) }

// Sparse returns each pair's words as a sparse row: the source's, the mark, the
// target's. Only its columns mean anything.
func (s *Sentences) Sparse() *model.Sparse { return s.sparse }

// Pair returns a pair, which belongs to s.
func (s *Sentences) Pair(i int) Sentence { return s.pairs[i] }

// Vocabulary returns how many words there are, the mark among them.
func (s *Sentences) Vocabulary() int { return s.vocabulary }

// Column returns the column of a target word; false if no sentence of the share has
// it, so that it has no parameters.
func (s *Sentences) Column(word uint32) (uint32, bool) {
	c := s.columns[word]
	return uint32(c), c >= 0
}

// NextID returns the first id above those of the words.
func (s *Sentences) NextID() uint64 { return 1 + 2*uint64(s.vocabulary) }

// NewSentences returns a worker's pairs, whose words are below vocabulary.
func NewSentences(pairs []Sentence, keys dataset.KeyMap, vocabulary int) (*Sentences, error) {
	set := &Sentences{pairs: pairs, vocabulary: vocabulary}
	var b model.Builder
	for _, p := range pairs {
		var ids []uint64
		for _, w := range p.Source {
			ids = append(ids, 1+uint64(w))
		}
		// The mark is in every sentence, so that it always has parameters.
		ids = append(ids, set.targetID(0))
		for _, w := range p.Target {
			ids = append(ids, set.targetID(w))
		}
		// The row serves to find a batch's keys. It has no values, and its label means
		// nothing.
		b.Row(ids, make([]float32, len(ids)), false)
	}
	var err error
	if set.sparse, err = b.Finish(&keys); err != nil {
		return nil, err
	}
	return set, set.findColumns(&keys)
}

// findColumns fills in the columns of the target words.
func (s *Sentences) findColumns(keys *dataset.KeyMap) error {
	s.columns = make([]int32, s.vocabulary)
	for w := range s.columns {
		key, err := keys.Key(s.targetID(uint32(w)))
		if err != nil {
			return err
		}
		at, ok := slices.BinarySearch(s.sparse.Keys(), key)
		if s.columns[w] = int32(at); !ok {
			s.columns[w] = -1
		}
	}
	return nil
}

func (s *Sentences) targetID(word uint32) uint64 { return 1 + uint64(s.vocabulary) + uint64(word) }
