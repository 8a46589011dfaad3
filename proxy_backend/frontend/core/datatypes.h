/* Written by scripts/generate from pytriton/_protocol/datatypes.py: do not edit.
 *
 * Number in Triton's C API, name in requests, bytes; 0: its values have none in common.
 */
/* clang-format off */
#ifndef PYTRITON_FRONTEND_CORE_DATATYPES_H
#define PYTRITON_FRONTEND_CORE_DATATYPES_H

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

#endif
