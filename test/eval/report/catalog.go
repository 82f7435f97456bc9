package report

// Item is a table or figure of a paper.
type Item struct {
	Name  string // as the paper calls it
	Claim string // what the paper has of it
	// Part has ours; empty: there is none, and Reason says why.
	Part, Reason string
	StandIn      string // what our data or model stand for
	Why          string // why ours is another
	Compared     []Comparison
}

// Paper is a paper with its tables and figures that have results, in their order.
type Paper struct {
	Name, Title string
	Items       []Item
}

// Comparison is a figure of a paper's beside ours.
type Comparison struct {
	Claim string
	Paper string // its figure; a ratio to it is given where it begins with a number
	// Ours is a cell of a part's table; empty: there is none, and Note says why.
	Ours Cell
	Note string
}

// Cell identifies a cell of a table: by the part that wrote it, the beginning of the table's
// title, the row's first cell and the column's head. Titles, rows and heads in the parts'
// source must go on saying the same; the report says so of a cell that is not found.
type Cell struct{ Part, Table, Row, Column string }

// Texts that several items share.
const (
	noPartition = "Out of reach here: it partitions TensorFlow's variables among its servers on 48 GPUs, where the time of its operations by partition counts rather than bytes; PS-lite's keys are divided by key range, which psidecar does not change without a placement."
	production  = "Out of reach: a production model of 7 billion examples on a cluster of Intel machines, which is not published."
	pictureData = "MNIST's pictures and a net of one hidden layer for ImageNet and GoogLeNet"
	criteo      = "7,000 rows in Criteo's format for 7 days of Criteo Kaggle"
)

// Papers returns the five papers and, last, what goes beyond them.
func Papers() []Paper {
	return []Paper{dww21(), dw23(), dct(), slim(), parallax(), beyond()}
}
