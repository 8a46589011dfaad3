/* Written by scripts/generate from pytriton/_protocol/datatypes.py: do not edit.
 *
 * tritonserver's datatypes: number in its C API, name in requests, bytes per element (0: variable).
 */
/* clang-format off */
#ifndef PYTRITON_COMMON_DATATYPES_H
#define PYTRITON_COMMON_DATATYPES_H

#define DATATYPES(X) \
    X(1, BOOL, 1) \
    X(2, UINT8, 1) \
    X(3, UINT16, 2) \
    X(4, UINT32, 4) \
    X(5, UINT64, 8) \
    X(6, INT8, 1) \
    X(7, INT16, 2) \
    X(8, INT32, 4) \
    X(9, INT64, 8) \
    X(10, FP16, 2) \
    X(11, FP32, 4) \
    X(12, FP64, 8) \
    X(13, BYTES, 0) \
    X(14, BF16, 2)

typedef enum {
    TYPE_INVALID,
#define DATATYPE(number, name, size) TYPE_##name = (number),
    DATATYPES(DATATYPE)
#undef DATATYPE
    TYPE_COUNT,
} DataType;

#endif
