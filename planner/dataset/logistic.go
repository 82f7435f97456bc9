package dataset

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Accuracy is the fraction of rows that a logistic regression classifies correctly.
type Accuracy struct {
	Train float64 `json:"train"` // of the rows it learned from
	Test  float64 `json:"test"`  // of the others
}

// ErrNotTwoClasses is wrapped by the error for labels that a logistic
// regression cannot learn.
var ErrNotTwoClasses = errors.New("not two classes")

// The parameters of training: AdaGrad with step stepSize, and one row in testShare kept for the
// test.
const (
	testShare = 5 // one row in this many is kept for the test
	epochs    = 10
	stepSize  = 0.5
	smoothing = 1e-6
)

// Evaluate trains a logistic regression on four fifths of the rows, drawn by the seed, and tests it
// on the rest: AdaGrad, 10 epochs, rows scaled to unit length, no regularization. Its purpose is to
// compare a data set with its hashed form; equal numbers of rows and equal seeds give equal splits.
// It checks ctx every few thousand rows.
func Evaluate(ctx context.Context, rows *Rows, seed uint64) (Accuracy, error) {
	l, err := newLogistic(rows)
	if err != nil {
		return Accuracy{}, err
	}
	// The split depends on the number of rows and the seed only, so that a set and its hashed form
	// are tested on the same rows.
	order := rand.New(rand.NewPCG(seed, 0x10615)).Perm(rows.Len())
	test, train := order[:len(order)/testShare], order[len(order)/testShare:]
	random := rand.New(rand.NewPCG(seed, 2))
	for range epochs {
		random.Shuffle(len(train), func(i, j int) { train[i], train[j] = train[j], train[i] })
		for at, r := range train {
			if at%4096 == 0 && ctx.Err() != nil {
				return Accuracy{}, ctx.Err()
			}
			l.trainRow(r)
		}
	}
	return Accuracy{Train: l.accuracy(train), Test: l.accuracy(test)}, nil
}

// A logistic is a logistic regression in training. Its constant feature has the number after all
// others.
type logistic struct {
	rows     *Rows
	feature  []int32   // as rows.ID, numbered from 0
	length   []float64 // row -> its Euclidean length
	positive float32   // the larger label
	bias     int32     // the number of the constant feature
	weight   []float64
	squares  []float64 // feature -> sum of its squared gradients
}

// newLogistic numbers the features and computes the rows' lengths. It fails if there are too few
// rows or not exactly two labels.
func newLogistic(rows *Rows) (*logistic, error) {
	if rows.Len() < 2*testShare {
		return nil, fmt.Errorf("%d rows are too few for a test: at least %d", rows.Len(), 2*testShare)
	}
	classes := slices.Clone(rows.Label)
	slices.Sort(classes)
	if classes = slices.Compact(classes); len(classes) != 2 {
		return nil, fmt.Errorf("%w: %d different labels, want 2", ErrNotTwoClasses, len(classes))
	}
	l := &logistic{rows: rows, feature: make([]int32, len(rows.ID)), length: make([]float64, rows.Len()), positive: classes[1]}
	// Ids are anywhere in 64 bits; weights need dense numbers.
	number := make(map[uint64]int32)
	for i, id := range rows.ID {
		n, ok := number[id]
		if !ok {
			n = int32(len(number))
			number[id] = n
		}
		l.feature[i] = n
	}
	l.bias = int32(len(number))
	l.weight = make([]float64, len(number)+1)
	l.squares = make([]float64, len(number)+1)
	for r := range l.length {
		_, values := rows.Features(r)
		for _, v := range values {
			l.length[r] += float64(v) * float64(v)
		}
		if l.length[r] = math.Sqrt(l.length[r]); l.length[r] == 0 {
			l.length[r] = 1
		}
	}
	return l, nil
}

// margin returns the model's log odds that row r is positive.
func (l *logistic) margin(r int) float64 {
	sum := 0.0
	for i := l.rows.Start[r]; i < l.rows.Start[r+1]; i++ {
		sum += l.weight[l.feature[i]] * float64(l.rows.Value[i])
	}
	return sum/l.length[r] + l.weight[l.bias]
}

// trainRow makes one step of gradient descent on the log loss of row r.
func (l *logistic) trainRow(r int) {
	target := 0.0
	if l.rows.Label[r] == l.positive {
		target = 1
	}
	slope := 1/(1+math.Exp(-l.margin(r))) - target
	for i := l.rows.Start[r]; i < l.rows.Start[r+1]; i++ {
		l.step(l.feature[i], slope*float64(l.rows.Value[i])/l.length[r])
	}
	l.step(l.bias, slope)
}

// step is AdaGrad's update of one weight.
func (l *logistic) step(feature int32, gradient float64) {
	l.squares[feature] += gradient * gradient
	l.weight[feature] -= stepSize * gradient / (math.Sqrt(l.squares[feature]) + smoothing)
}

// accuracy returns the fraction of the given rows that the model classifies correctly.
func (l *logistic) accuracy(rows []int) float64 {
	right := 0
	for _, r := range rows {
		if (l.margin(r) > 0) == (l.rows.Label[r] == l.positive) {
			right++
		}
	}
	return float64(right) / float64(len(rows))
}
