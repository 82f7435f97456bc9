package dataset_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/psidecar/psidecar/planner/dataset"
)

func ExampleRead() {
	text := "1 3:0.5 10:2\n-1 4:1\n"
	err := dataset.Read(context.Background(), strings.NewReader(text), "train.libsvm", dataset.Options{}, func(rows *dataset.Rows) error {
		for i := range rows.Len() {
			ids, values := rows.Features(i)
			fmt.Println(rows.Label[i], ids, values)
		}
		return nil
	})
	fmt.Println(err)
	err = dataset.Read(context.Background(), strings.NewReader("1 3:x\n"), "bad.libsvm", dataset.Options{}, func(*dataset.Rows) error { return nil })
	fmt.Println(err)
	// Output:
	// 1 [3 10] [0.5 2]
	// -1 [4] [1]
	// <nil>
	// bad.libsvm, line 1: feature "3:x": value is not a finite decimal number
}
