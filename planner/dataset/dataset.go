// Package dataset reads and writes training data as libsvm and libffm text. A file, plain or
// compressed, becomes batches of rows in the file's order; it is parsed on all cores and never in
// memory as a whole. The graph builder, the partition and score commands and the training job read
// through it.
//
//	label id:value id:value ...               libsvm
//	label field:id:value field:id:value ...   libffm
//
// As dmlc-core, XGBoost and LIBLINEAR do, libsvm text may have features without values (1),
// label:weight, several labels (the first counts), qid:n behind the label, comments and a byte
// order mark. Weights and queries are left out.
//
// [ReadFile] streams a file, [Load] keeps it, [Writer] writes rows. [KeyMap] tells which key a job
// uses on the wire for a feature id.
//
// # Reading
//
// A pipeline of goroutines cuts the text into chunks of whole lines, parses them in parallel and
// delivers them in order (read.go). The chunks circulate between a fixed number of buffers, so
// memory does not grow with the file. Errors name the file and the line ([LineError]).
//
// # Synthetic data
//
// [SyntheticText], [SyntheticClicks] and [SyntheticSentences] make training data from a seed, for
// machines without a real data set and for tests that need one of any size. Texts have power-law
// word frequencies, topics that rows share, rows of unit length, and labels that a linear model can
// learn. Clicks have numeric and categorical columns of very different cardinality, and an outcome
// that depends on single columns and on pairs of them. The same options always give the same rows.
// psjob trains on them; tests and benchmarks of the partitioners use them as well.
//
// # Hashing
//
// A [Hasher] makes training data smaller before it is partitioned (DW23 sections 3.2 and 4). A row
// of any length becomes a row of at most Bins features out of Bins << Bits, and similar rows keep
// sharing features in proportion to their similarity. psidecar's hash and partition commands call
// it row by row while they read.
//
// Both schemes are from Li, Li and Zhang, "Re-Randomized Densification for One Permutation Hashing
// and Bin-Wise Consistent Weighted Sampling" (NeurIPS 2019), which DW23 cites: [OPH] for sets,
// [BCWS] for weights. Either draws one sample per bin from a row; the sample's code of Bits bits,
// with the bin's number, is the new feature (b-bit hashing for linear models).
package dataset

// MaxID is the largest feature id that a file may have.
const MaxID = 1 << 63

// Rows are consecutive rows of a file. A row is one training sample: a label and the features that
// are not zero. The features of row i are elements Start[i] to Start[i+1]-1 of the lists.
type Rows struct {
	Line  []int     // the line of each row in its file, the first is 1
	Label []float32 // one a row
	Start []int     // rows+1 offsets into the lists below
	ID    []uint64  // feature ids as they stand in the file, at most MaxID
	Value []float32 // len(ID)
	Field []uint32  // len(ID) for libffm (field:id:value), else empty
	// The chunk of the file that the rows came from, and where in it each row is, without the
	// line's end.
	text   []byte
	textAt []span // where in text each row stands, without the line's end
}

// A span is a range of bytes of the chunk.
type span struct{ from, to int }

// Len returns the number of rows.
func (r *Rows) Len() int { return len(r.Label) }

// Features returns the ids and values of row i. They belong to r.
func (r *Rows) Features(i int) ([]uint64, []float32) {
	from, to := r.Start[i], r.Start[i+1]
	return r.ID[from:to], r.Value[from:to]
}

// Fields returns the fields of row i of libffm text, nil for libsvm.
func (r *Rows) Fields(i int) []uint32 {
	if len(r.Field) == 0 {
		return nil
	}
	return r.Field[r.Start[i]:r.Start[i+1]]
}

// Text returns row i as it is in the file, without the line's end. It is available only for rows
// that a reader delivers, not for those of [Load].
func (r *Rows) Text(i int) []byte { return r.text[r.textAt[i].from:r.textAt[i].to] }

// reset empties r and keeps its memory. It drops the text, which belongs to the chunk.
func (r *Rows) reset() {
	r.Line, r.Label, r.Start = r.Line[:0], r.Label[:0], append(r.Start[:0], 0)
	r.ID, r.Value, r.Field = r.ID[:0], r.Value[:0], r.Field[:0]
	r.text, r.textAt = nil, r.textAt[:0]
}

// appendRows appends a copy of the rows of b, without their text.
func (r *Rows) appendRows(b *Rows) {
	if len(r.Start) == 0 {
		r.Start = append(r.Start, 0)
	}
	base := len(r.ID)
	for _, end := range b.Start[1:] {
		r.Start = append(r.Start, base+end)
	}
	r.Line = append(r.Line, b.Line...)
	r.Label = append(r.Label, b.Label...)
	r.ID = append(r.ID, b.ID...)
	r.Value = append(r.Value, b.Value...)
	r.Field = append(r.Field, b.Field...)
}
