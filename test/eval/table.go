package main

import (
	"fmt"
	"io"
	"strings"
)

// A table is a markdown table with a title line above it: the first column to the left, numbers
// to the right. It is readable as text, too. Package report finds cells by title, first column
// and head.
type table struct {
	title string
	head  []string
	rows  [][]string
}

// addRow adds a row, with a cell for each column.
func (t *table) addRow(cells ...string) { t.rows = append(t.rows, cells) }

// write writes the table. Columns are padded by bytes, so those with other letters than ASCII
// are a little off in plain text.
func (t *table) write(w io.Writer) error {
	width := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			width[i] = max(width[i], len(cell))
		}
	}
	var b strings.Builder
	line := func(row []string) {
		for i, cell := range row {
			if i == 0 {
				fmt.Fprintf(&b, "| %-*s |", width[i], cell)
			} else {
				fmt.Fprintf(&b, " %*s |", width[i], cell)
			}
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%s\n\n", t.title)
	line(t.head)
	for i, n := range width {
		if i == 0 {
			fmt.Fprintf(&b, "|:%s-|", strings.Repeat("-", n))
		} else {
			fmt.Fprintf(&b, "-%s:|", strings.Repeat("-", n))
		}
	}
	b.WriteByte('\n')
	for _, row := range t.rows {
		line(row)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}
