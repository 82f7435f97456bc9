package model

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/psidecar/psidecar/planner/dataset"
)

// longestSentence bounds the words of a sentence.
const longestSentence = 200

// Sentences holds pairs of a source sentence and its translation. Words are numbers
// from 1 to the vocabulary's size - 1; 0 is the mark before and behind a translation.
// A source word's feature id is 1 + the word; a target word's is that plus the size
// of the vocabulary.
type Sentences struct {
	sparse     *Sparse // the source's words, the mark, the target's words
	pairs      []Pair
	vocabulary int
	columns    []int32 // by target word; -1: no sentence has it
}

// A Pair is a source sentence and its translation.
type Pair struct{ Source, Target []uint32 }

// Len returns the number of pairs.
func (s *Sentences) Len() int { return len(s.pairs) }

// Sparse returns each pair's words as a sparse row: the source's, the mark, the
// target's. Only its columns mean anything.
func (s *Sentences) Sparse() *Sparse { return s.sparse }

// Pair returns a pair, which belongs to s.
func (s *Sentences) Pair(i int) Pair { return s.pairs[i] }

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

// LoadSentences reads a worker's share of pairs of sentences: a pair a line, the
// source's words, a tab and the target's, numbers from 1 to vocabulary - 1 separated
// by blanks. The file may be compressed.
func LoadSentences(ctx context.Context, path string, share Share, keys dataset.KeyMap, vocabulary int) (*Sentences, error) {
	file, err := open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	set := &Sentences{vocabulary: vocabulary}
	var b builder
	lines := bufio.NewScanner(file)
	n := 0
	for line := 1; lines.Scan(); line++ {
		if line%4096 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if share.has(n) {
			if err := set.pair(&b, lines.Bytes()); err != nil {
				return nil, &dataset.LineError{File: path, Line: line, Err: err}
			}
		}
		n++
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if set.Len() == 0 {
		return nil, fmt.Errorf("%s: %d pairs are too few: none left for worker %d of %d", path, n, share.Index, share.Of)
	}
	if set.sparse, err = b.finish(&keys); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
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

// pair parses a line and adds it.
func (s *Sentences) pair(b *builder, line []byte) error {
	source, target, ok := bytes.Cut(line, []byte{'\t'})
	if !ok {
		return fmt.Errorf("no tab: want the source's words, a tab and the target's")
	}
	var p Pair
	var err error
	if p.Source, err = s.words(source); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if p.Target, err = s.words(target); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	s.pairs = append(s.pairs, p)
	var ids []uint64
	for _, w := range p.Source {
		ids = append(ids, 1+uint64(w))
	}
	// The mark is in every sentence, so that it always has parameters.
	ids = append(ids, s.targetID(0))
	for _, w := range p.Target {
		ids = append(ids, s.targetID(w))
	}
	// The row serves to find a batch's keys. It has no values, and its label means
	// nothing.
	b.row(ids, make([]float32, len(ids)), false)
	return nil
}

// words parses one side of a pair. Its length is bounded, since attention costs its
// square.
func (s *Sentences) words(text []byte) (words []uint32, err error) {
	for field := range bytes.FieldsSeq(text) {
		w, err := strconv.ParseUint(string(field), 10, 32)
		if err != nil || w == 0 || w >= uint64(s.vocabulary) {
			return nil, fmt.Errorf("word %.40q: want a number from 1 to %d, the vocabulary's last", field, s.vocabulary-1)
		}
		words = append(words, uint32(w))
	}
	if len(words) == 0 || len(words) > longestSentence {
		return nil, fmt.Errorf("%d words: want 1 to %d", len(words), longestSentence)
	}
	return words, nil
}
