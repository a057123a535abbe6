package format

// These are first bytes of files that several places recognize. The table magics has the others.
const (
	ArrowMagic   = "ARROW1\x00\x00"
	FeatherMagic = "FEA1\x00\x00\x00\x00" // of version 1
	GzipMagic    = "\x1f\x8b"
	LFSMagic     = "version https://git-lfs.github.com/spec/v1"
	LZ4Magic     = "\x04\x22\x4d\x18"
	NpyMagic     = "\x93NUMPY"
	ParquetMagic = "PAR1"
	PDFMagic     = "%PDF-"
	XzMagic      = "\xfd7zXZ\x00"
	ZipMagic     = "PK\x03\x04"
	ZstdMagic    = "\x28\xb5\x2f\xfd"

	arrowFooter   = "ARROW1"
	megatronMagic = "MMIDIDX\x00\x00" // of an index
)

// magics lists the first bytes of files that do not hold headerless tokens. Each description
// completes the sentence "FILE is ...", and may suggest a fix.
var magics = []struct{ prefix, description string }{
	{"\x8a\xd8\x34\x01", "a multiple-choice evaluation of llm.c, not a stream of tokens"},
	{"\xc6\xd7\x34\x01", "a model of llm.c, not tokens"},
	{"\xc7\xd7\x34\x01", "the expected results of a model of llm.c, not tokens"},
	{"\xc8\xd7\x34\x01", "a tokenizer of llm.c, not tokens"},
	{"LITPKDS", "a packed dataset of LitGPT or TinyLlama, not headerless tokens; write the tokens after its header of 24 bytes on their " +
		"own, as NumPy's tofile does"},
	{"LDFZ01\x00\x00", "a compressed chunk of LitData, not headerless tokens; write the tokens in it on their own, as NumPy's tofile does"},
	{"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f", "an ArrayRecord file, not headerless tokens; write the tokens in it on their own, as NumPy's tofile does"},
	{"TNTIDX\x00\x00", "the index of an old fairseq or Megatron-LM data set, not tokens; name the .bin file next to it, and set token_dtype"},
	{megatronMagic, "the index of a Megatron-LM data set, not tokens; name the .bin file next to it"},
	{GzipMagic + "\x08", "compressed with gzip; decompress it: gunzip FILE"},
	{"\x1f\x9d\x90", "compressed with compress; decompress it: uncompress FILE"},
	{ZstdMagic, "compressed with zstd; decompress it: unzstd FILE"},
	{XzMagic, "compressed with xz; decompress it: unxz FILE"},
	{LZ4Magic, "compressed with lz4; decompress it: unlz4 FILE"},
	{"\x02\x21\x4c\x18", "compressed with lz4; decompress it: unlz4 FILE"},
	{"LZIP\x01", "compressed with lzip; decompress it: lzip -d FILE"},
	{"\x89LZO\x00\r\n\x1a\n", "compressed with lzop; decompress it: lzop -d FILE"},
	{"\xff\x06\x00\x00sNaPpY", "compressed with Snappy; decompress it"},
	{ZipMagic, zipDescription},
	{"PK\x05\x06", zipDescription},
	{"PK\x07\x08", zipDescription},
	{"7z\xbc\xaf\x27\x1c", "a 7z archive, not tokens; extract the files"},
	{"Rar!\x1a\x07", "a RAR archive, not tokens; extract the files"},
	{ParquetMagic, parquetDescription},
	{"PARE", parquetDescription},
	{ArrowMagic, arrowDescription},
	{FeatherMagic, arrowDescription},
	{"ORC", "an ORC file, not tokens; write its column of tokens on its own, as NumPy's tofile does"},
	{"Obj\x01", "an Avro file, not tokens; write its column of tokens on its own, as NumPy's tofile does"},
	{"\x89HDF\r\n\x1a\n", "an HDF5 file, not headerless tokens; write one of its data sets on its own, as NumPy's tofile does"},
	{"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a file of torch.save, not headerless tokens; write the array in it on its own, as NumPy's tofile does"},
	{"MATLAB 5.0 MAT-file", matlabDescription},
	{"MATLAB 7.3 MAT-file", matlabDescription},
	{"CDF\x01", netCDFDescription},
	{"CDF\x02", netCDFDescription},
	{"CDF\x05", netCDFDescription},
	{"SQLite format 3\x00", "an SQLite database, not tokens"},
	{"GGUF", "a GGUF file of model weights, not tokens"},
	{"\x7fELF", "a program (ELF), not tokens"},
	{PDFMagic, "a PDF document, not tokens"},
	{"\x89PNG\r\n\x1a\n", "an image (PNG), not tokens"},
	{"\xff\xd8\xff\xe0\x00\x10JFIF", "an image (JPEG), not tokens"},
	{"\x00\x00\x00\x01Bud1", "what macOS keeps about a folder (.DS_Store), not tokens"},
	{LFSMagic, "a pointer of Git LFS, not the file itself; fetch that with git lfs pull"},
	{"<!DOCTYPE html", "an HTML page, not tokens; did a download go wrong?"},
	{"<html", "an HTML page, not tokens; did a download go wrong?"},
}

const (
	zipDescription     = "a zip archive, as .npz and .pt files are, not tokens; write only the elements of one of its arrays, as NumPy's tofile does"
	parquetDescription = "a Parquet file, not tokens; " + tableRemedy
	matlabDescription  = "a MATLAB file, not headerless tokens; write the array in it on its own, as NumPy's tofile does"
	netCDFDescription  = "a NetCDF file, not headerless tokens; write the array in it on its own, as NumPy's tofile does"
	arrowDescription   = "an Arrow file, not tokens; " + tableRemedy
	tableRemedy        = "batchfs prepare tokenizes the column of text that --field names, or reads the column of token ids that --ids names"
)
