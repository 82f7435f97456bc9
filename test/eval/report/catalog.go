package report

// Item is a table or figure of a paper.
type Item struct {
	Name  string // as the paper calls it
	Claim string // what the paper has of it
	// Part has ours; empty: there is none, and Reason says why.
	Part, Reason string
	StandIn      string // what our data or model stand for
	Why          string // why ours is another
}

// Paper is a paper and its tables and figures with results, in their order.
type Paper struct {
	Name, Title string
	Items       []Item
}

// Headline is what a paper states first.
type Headline struct {
	Claim string
	Paper string // its figure; a ratio to it is given where it begins with a number
	// Ours is a cell of a part's table; empty: there is none, and Note says why.
	Ours Cell
	Note string
}

// Cell names a cell of a table: by the part that wrote it, the beginning of the
// table's title, the row's first cell and the column's head.
type Cell struct{ Part, Table, Row, Column string }

const (
	noGPU       = "Out of reach: it compares TensorFlow and Horovod on 48 GPUs; psidecar carries PS-lite, and these machines have no GPU."
	noPartition = "Out of reach here: it partitions TensorFlow's variables among its servers on 48 GPUs; PS-lite's keys are divided by key range, which psidecar does not change without a placement."
	production  = "Out of reach: a production model of 7 billion examples on a cluster of Intel machines, which is not published."
	otherCodec  = "Not repeated: it shows that another codec does badly, which psidecar does not have."
	pictureData = "MNIST's pictures and a net of one hidden layer for ImageNet and GoogLeNet"
	criteo      = "7,000 rows in Criteo's format for 7 days of Criteo Kaggle"
)

// Papers are the five papers.
func Papers() []Paper {
	return []Paper{dww21(), dw23(), dct(), slim(), parallax()}
}

func dww21() Paper {
	return Paper{"DWW21", "Duan, Wang and Wu 2021, Minimizing Training Time of Distributed Machine Learning by Reducing Data Communication", []Item{
		{Name: "Table 4", Claim: "The sizes of four real data sets and three made ones.", Part: "table5", StandIn: "excerpts and rebuilt sets of the public ones; CTRa is not published", Why: "Each table's title has our sizes."},
		{Name: "Table 5", Claim: "With 8 machines less traffic at the busiest one than at random, by TSH-1, TSH-2, MBP and PaToH, in percent (in the column of the paper's).", Part: "table5", StandIn: "rcv1-excerpt, criteo-80k for CTRa, news20-rebuilt, soc-slashdot for soc-LiveJournal", Why: "Smaller data, of other degrees; best is psidecar's own."},
		{Name: "Figure 7", Claim: "Node degrees of rcv1.binary and news20: many small, few large; 30 and 18 in the mean (table 4).", Part: "degrees", StandIn: "rcv1-excerpt, news20-rebuilt", Why: "The same corpora, other documents: news20-rebuilt has 1.35 million words for the paper's 62,000 (table 4), most of them in two messages."},
		{Name: "Figure 8", Claim: "The sparser the graph, the more a partition gains over random, at 2 to 64 machines.", Part: "sweeps", StandIn: "random graphs of 1,000 parameters, with --full of 10,000", Why: "Smaller graphs by a factor of ten, unless --full."},
		{Name: "Figure 9", Claim: "More data or parameters change the gain little.", Part: "sweeps", StandIn: "as figure 8", Why: "As figure 8."},
		{Name: "Figure 10", Claim: "CTRa gains more than soc-LiveJournal at any number of machines; TSH-1 and TSH-2 stay where they are as machines become more, MBP drops.", Part: "machines", StandIn: "criteo-80k for CTRa, soc-slashdot for soc-LiveJournal; with --quick their first 4,000 rows", Why: "Gains are smaller: fields of criteo-80k have values that most rows share, and soc-slashdot is a small graph around few hubs. The figure's numbers are not in the paper's text. PaToH is not among psidecar's algorithms."},
		{Name: "Figure 11", Claim: "Training time on 16 machines of EC2, with the partition's own time.", Part: "worth", StandIn: "logistic regression on rcv1-excerpt, 8 hosts at 100 Mbit/s", Why: "8 hosts for 16 machines, the partition's own time is in table 5, not here."},
	}}
}

func dw23() Paper {
	return Paper{"DW23", "Duan and Wu 2023, Reducing Communication in Parameter Servers with Model Compression and Graph Partition", []Item{
		{Name: "Figure 2", Claim: "Node degrees of rcv1.binary and news20: most are small.", Part: "degrees", StandIn: "rcv1-excerpt, news20-rebuilt", Why: "As figure 7 of DWW21."},
		{Name: "Figure 5", Claim: "With more bins of hashed features more traffic and more accuracy, which is lost nearly linearly as bins halve.", Part: "bins", StandIn: "rcv1-excerpt, with --quick its first quarter, for the paper's set, which it does not name", Why: "The figure's numbers are not in the paper's text, so that the shapes are compared. A row has a feature for each bin: beyond 64 bins hashed rows are longer than they were, and cost more than those that are not hashed."},
		{Name: "Figure 6", Claim: "Traffic grows with machines; DPPA stays below random and MGP.", Part: "sweeps", StandIn: "random graphs for hashed news20", Why: "Gains over random rather than volumes; MGP is the multilevel algorithm."},
		{Name: "Figure 7", Claim: "Traffic grows with the ratio of samples to parameters.", Part: "sweeps", StandIn: "random graphs", Why: "The second sweep varies parameters and data."},
		{Name: "Figure 8", Claim: "While a net is pruned, DPPA's cumulative volume with migration is below MGP's, and the gap grows with the epochs.", Part: "dynamic", StandIn: "nets on MNIST", Why: "Ours are smaller nets; locality is psidecar's own."},
	}}
}

func dct() Paper {
	return Paper{"DCT", "Gupta et al. 2021, Training Recommender Systems at Scale: Communication-Efficient Model and Data Parallelism", []Item{
		{Name: "Table 1", Claim: "Activations at 90% and 2 or 3 workers cost nothing, at 95% and 3 workers 0.0008 of test loss.", Part: "activations", StandIn: criteo + "; nets of half of DLRM's units, with --full all", Why: "Eight epochs of 5,600 rows are a short and noisy training: more regularization shows as another loss than after days."},
		{Name: "Table 2", Claim: "Gradients at up to 98% cost nothing, at 99.5% 0.0009 of test loss.", Part: "threshold", StandIn: criteo, Why: "As table 1."},
		{Name: "Table 3", Claim: "Both at 90% cost nothing, at 95% 0.0010 of test loss.", Part: "activations", StandIn: criteo, Why: "As table 1."},
		{Name: "Table 4", Claim: "A translation model's loss is as without at 95% and 2 or 3 workers and at 90% and 5.", Part: "activations-deep", StandIn: "a Transformer of 2+2 layers that translates between made languages, for one of 6+6 on IWSLT'14", Why: "Nets of 256 units have 26 left at 90% and 13 at 95%, those of 1,024 have 102 and 51, and four splits are all of our layers for four of twelve; the training is short, and BLEU of regular sentences is higher."},
		{Name: "Table 5", Claim: "12 splits of a production model at 90%: test loss 0.016% better, time 14% less.", Reason: production},
		{Name: "Table 6", Claim: "Gaussian sketching of activations does not do well.", Reason: otherCodec},
		{Name: "Table 7", Claim: "Top-k of the activations' gradients by themselves does not do well.", Reason: otherCodec},
		{Name: "Figure 2", Claim: "Thresholds of gradients stay near their mean, so that they need not be computed in each step.", Part: "lifespan", StandIn: criteo, Why: "What that costs is shown, not the thresholds."},
		{Name: "Figure 5", Claim: "Thresholds of activations fall faster where the smallest do not go.", Part: "activations-time", StandIn: criteo, Why: "As table 1."},
		{Name: "Figure 7 a, b", Claim: "A life-span of 1,000 steps saves 23% of the time and costs nothing.", Part: "lifespan", StandIn: criteo, Why: "Time is that of the codec alone; its selection is not a sort."},
		{Name: "Figure 7 c, d", Claim: "Up to 99.5% time falls, and nothing is lost.", Part: "threshold", StandIn: criteo, Why: "Time on links of 200 Mbit/s: make eval-codecs, as root."},
		{Name: "Theorem 1", Claim: "Up to first order the mean gradient is that of one threshold for all rows, if means of activations by both are equal.", Part: "theorem", StandIn: "a net of two hidden layers of 64 units on MNIST", Why: "The column of assumption (1) says how far it holds, that of the gradient what is left of second order."},
	}}
}

func slim() Paper {
	return Paper{"Slim-DP", "Sun et al. 2018, Slim-DP: A Multi-Agent System for Communication-Efficient Distributed Deep Learning", []Item{
		{Name: "Table 1", Claim: "55% of the communication time saved on GoogLeNet and 71% on VGG-16, with 0.2 to 0.5 points more accuracy.", Part: "slim", StandIn: pictureData, Why: "Bytes are counted rather than time, pulls and pushes."},
		{Name: "Figure 2", Claim: "30 to 40% more images a second on VGG-16, over 10% on GoogLeNet.", Reason: "Live and as root: make eval-codecs has steps a second by codec on links of 200 Mbit/s."},
		{Name: "Figure 3", Claim: "Slim-DP is ahead of plain and quantized pushes throughout the training.", Part: "slim", StandIn: pictureData, Why: "By steps, not by time."},
		{Name: "Figure 4", Claim: "Without exploration it does not converge, without a core it is as DropConnect.", Part: "slim", StandIn: pictureData, Why: "As table 1."},
		{Name: "Figure 5", Claim: "(0.3, 0.15) is best, (0.2, 0.1) loses accuracy, (0.5, 0.25) saves less.", Part: "slim", StandIn: pictureData, Why: "As table 1."},
	}}
}

func parallax() Paper {
	return Paper{"Parallax", "Kim et al. 2019, Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks", []Item{
		{Name: "Table 1", Claim: "Sparse models train faster by parameter servers, dense ones by AllReduce.", Reason: noGPU},
		{Name: "Table 2", Claim: "Throughput by the number of partitions of sparse variables.", Reason: noPartition},
		{Name: "Table 3", Claim: "Bytes a machine sends for each kind of variable, by architecture.", Part: "transfer", StandIn: "logistic regression on criteo-80k and a small recommender on " + criteo, Why: "The formulas count values alone; PS-lite's messages have keys of 8 bytes beside those of 4."},
		{Name: "Table 4", Claim: "Words a second of AR, plain servers, optimised ones and both: LM 45.5k, 98.9k, 250k, 274k, NMT 68.3k, 102k, 116k, 204k. On plain servers' the optimised ones gain 2.5 and 1.1 times, both 2.8 and 2.0.", Part: "architectures", StandIn: "bytes of the paper's models, and a small Transformer for NMT, a recommender and logistic regression on criteo-80k, by calculation", Why: "Bytes alone leave out what TensorFlow's servers take to add pushes up, which local aggregation relieves most on LM, and AllGatherv by OpenMPI, by which AR loses on NMT although it moves less. What a machine's workers use in common is assumed for the paper's models, and measured for ours."},
		{Name: "Table 5", Claim: "Partitions found by regression are within 2% of the best.", Reason: noPartition},
		{Name: "Table 6", Claim: "The sparser the model, the larger the gain, 2.0 to 3.4 times.", Reason: noGPU},
		{Name: "Figure 2", Claim: "Data transfer of each architecture.", Reason: "A drawing of table 3."},
		{Name: "Figure 7", Claim: "As accurate as others, in less time.", Reason: noGPU},
		{Name: "Figure 8", Claim: "2.8 times the throughput of TensorFlow's servers on LM with 48 GPUs.", Reason: noGPU},
		{Name: "Figure 9", Claim: "9.4 to 43.6 times the throughput of one GPU with 48.", Reason: noGPU},
	}}
}
